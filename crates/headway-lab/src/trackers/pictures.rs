//! Videos: pictures in memory before anything is timed, from a file or computed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::klt::TrackerShape;

/// Pictures of grey levels, shown forwards and backwards in turns, so that motion never leaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    pictures: Vec<Vec<f32>>,
}

impl Video {
    /// `count` pictures of a camera that moves over a surface with texture at several scales; `seed` says where it begins.
    pub fn synthetic(shape: &TrackerShape, seed: u64, count: usize) -> Self {
        let (width, height) = (shape.width(), shape.height());
        let place = seed as f32 * 97.0;
        let waves = [(0.31, 0.17, 22.0), (-0.21, 0.29, 22.0), (0.06, -0.11, 30.0), (0.27, 0.31, 9.0f32)];
        let picture = |frame: usize| {
            let (right, down) = (1.3 * frame as f32, 0.4 * frame as f32);
            let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x as f32 - right, y as f32 - down)));
            let grey = |(x, y): (f32, f32)| {
                let bend = (0.013 * (x + place) * 0.17).sin();
                let sum: f32 = waves.iter().map(|(u, v, high)| high * (u * (x + place) + v * y + bend).sin()).sum();
                (120.0 + sum).clamp(0.0, 255.0).round()
            };
            pixels.map(grey).collect()
        };
        Self { pictures: (0..count.max(1)).map(picture).collect() }
    }

    /// `count` pictures of a file of 8-bit grey levels, row after row and picture after picture, from picture `first` on;
    /// the file is taken as a ring.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Io`]; [`headway::ErrorKind::Options`] if the file has no whole picture.
    pub fn read(shape: &TrackerShape, path: &Path, first: u64, count: usize) -> Result<Self, headway::Error> {
        let failed = |source| headway::Failure::Read { path: path.to_owned(), source };
        let bytes = (shape.width() * shape.height()) as u64;
        let mut file = File::open(path).map_err(failed)?;
        let there = file.metadata().map_err(failed)?.len() / bytes;
        if there == 0 {
            return Err(headway::Failure::Options(
                "the video has no whole picture: give 8-bit grey levels of 320 x 240 pixels",
            )
            .into());
        }
        let mut pictures = Vec::with_capacity(count);
        let mut grey = vec![0u8; bytes as usize];
        for at in 0..count.max(1) as u64 {
            file.seek(SeekFrom::Start((first.wrapping_add(at)) % there * bytes)).map_err(failed)?;
            file.read_exact(&mut grey).map_err(failed)?;
            pictures.push(grey.iter().map(|grey| f32::from(*grey)).collect());
        }
        Ok(Self { pictures })
    }

    /// What frame `frame` shows.
    pub fn picture(&self, frame: u64) -> &[f32] {
        let last = self.pictures.len() as u64 - 1;
        let at = if last == 0 { 0 } else { frame % (2 * last) };
        let at = if at > last { 2 * last - at } else { at };
        &self.pictures[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_shown_forwards_and_backwards() {
        let shape = TrackerShape::new(64, 64, 32).unwrap();
        let video = Video::synthetic(&shape, 3, 3);
        let order: Vec<_> = (0..6)
            .map(|frame| video.pictures.iter().position(|picture| picture == video.picture(frame)).unwrap())
            .collect();
        assert_eq!(order, [0, 1, 2, 1, 0, 1]);
        assert_ne!(Video::synthetic(&shape, 4, 1), Video::synthetic(&shape, 3, 1));
    }

    #[test]
    fn a_file_of_grey_levels_is_a_ring_of_pictures() {
        let shape = TrackerShape::new(64, 64, 32).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = [7u8, 9].into_iter().flat_map(|grey| vec![grey; 64 * 64]).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        let video = Video::read(&shape, file.path(), 1, 2).unwrap();
        assert_eq!([video.picture(0)[5], video.picture(1)[5]], [9.0, 7.0]);
        std::fs::write(file.path(), [0]).unwrap();
        assert!(matches!(
            Video::read(&shape, file.path(), 0, 1).map_err(headway::Error::into_failure),
            Err(headway::Failure::Options(_))
        ));
    }
}
