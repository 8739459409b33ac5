//! Whether each method works: not what the driver says, but what arrives (specification of transfers, 1.2).

use headway_core::decisions::chooser::CopyChoice;
use headway_core::models::transfer::{Direction, Method};
use headway_device::gpu::{Caching, CpuReach};
use headway_device::{Access, Buffer, DeviceError};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::decide::Decision;
use super::error::chain;
use super::gpu::CopierGpu;
use super::request::{Host, Request, claim};
use super::{At, Copier, CopyError, MethodProbe};

/// Sizes around lines and pages, and one of several chunks with a tail.
const SIZES: [usize; 6] = [1, 63, 64, 65, 4096, (1 << 20) + 3];
/// Bytes on each side that must stay as they are; odd, so that nothing is aligned.
const GUARD: usize = 67;
/// What guards hold.
const FILL: u8 = 0xA5;

impl Copier {
    /// Every method on every GPU.
    pub(super) fn probe_all(&self) -> Vec<MethodProbe> {
        (0..self.gpus.len()).flat_map(|gpu| self.probe_gpu(gpu)).collect()
    }

    fn probe_gpu(&self, at: usize) -> Vec<MethodProbe> {
        let gpu = &self.gpus[at];
        let mut methods: Vec<(Method, Result<(), DeviceError>)> =
            [Method::Pageable, Method::Dma].map(|method| (method, Ok(()))).into();
        methods.extend([Method::Register, Method::Pinning, Method::Staged].map(|method| (method, Ok(()))));
        for method in [Method::Window, Method::PagedWindow] {
            methods.extend(gpu.windows().iter().map(|(mapping, usable)| (method(Some(*mapping)), usable.clone())));
        }
        let residents = gpu.resident_forms().iter();
        methods.extend(residents.map(|(shape, usable)| (Method::Resident(Some(*shape)), usable.clone())));
        methods.push((Method::Kernel, Ok(())));
        if self.gpus.len() > 1 {
            methods.extend([Method::Peer, Method::Multipath].map(|method| (method, Ok(()))));
        }
        let tried: Vec<(Method, Result<(), DeviceError>)> = methods
            .into_iter()
            .map(|(method, stated)| {
                (method, stated.and_then(|()| self.try_method(at, method).map_err(|error| refusal(method, error))))
            })
            .collect();
        let usable = |wanted: Method| tried.iter().any(|(method, usable)| *method == wanted && usable.is_ok());
        for (method, _) in tried.iter().filter(|(_, usable)| usable.is_err()) {
            self.choosers[at].lock().leave_out(*method);
        }
        let instead = |method: Method| {
            let mut forms = method.abilities().instead.iter().flat_map(|instead| {
                let asked = self.options.resident || instead.any_form() != Method::Resident(None);
                tried.iter().map(|(other, _)| *other).filter(move |other| asked && other.any_form() == *instead)
            });
            let driver = (!method.abilities().instead.is_empty()).then_some(Method::Pageable);
            forms.find(|other| usable(*other)).or(driver)
        };
        tried
            .iter()
            .map(|(method, usable)| MethodProbe {
                gpu: at,
                method: *method,
                usable: usable.clone(),
                fallback: if usable.is_err() { instead(*method).filter(|next| next != method) } else { None },
            })
            .collect()
    }

    /// Random bytes of every size, both ways, compared through another method.
    fn try_method(&self, at: usize, method: Method) -> Result<(), CopyError> {
        let gpu = &self.gpus[at];
        let reach = method.mapping().map_or(CpuReach::Device, CpuReach::Window);
        let refuse = |error| CopyError::device(method, error, 0, 0);
        let largest = SIZES[SIZES.len() - 1] + 2 * GUARD;
        let device = gpu.device.device_buffer(largest, reach).map_err(refuse)?;
        if method == Method::Peer {
            return self.try_peer(at, &device);
        }
        let pinned = gpu.device.pinned_buffer(largest, Caching::Cached).map_err(refuse)?;
        let bench = Bench { copier: self, gpu: at, method, device, pinned };
        let mut random = Pcg64Mcg::seed_from_u64(1);
        for size in SIZES {
            bench.round_in(size, &mut random)?;
            bench.round_out(size, &mut random)?;
        }
        Ok(())
    }

    /// To the first GPU that is reached directly.
    fn try_peer(&self, at: usize, here: &Buffer) -> Result<(), CopyError> {
        let method = Method::Peer;
        let refuse = |error| CopyError::device(method, error, 0, 0);
        let reached = |other: &usize| *other != at && self.gpus[at].device.reaches(self.gpus[*other].id);
        let other = (0..self.gpus.len()).find(reached).ok_or_else(|| {
            refuse(DeviceError::Unavailable {
                what: "a direct way to another GPU".into(),
                reason: "none is reached".into(),
                remedy: "copies between GPUs go through the host".into(),
            })
        })?;
        let there = self.gpus[other].device.device_buffer(here.len(), CpuReach::Device).map_err(refuse)?;
        let mut random = Pcg64Mcg::seed_from_u64(2);
        for size in SIZES {
            let data = bytes(&mut random, size);
            let (mut inside, mut arrived) = (guarded(size), guarded(size));
            write(&self.gpus[at], here, &guarded_with(&data)).map_err(refuse)?;
            write(&self.gpus[other], &there, &inside).map_err(refuse)?;
            let ends = |buffer| At { buffer, offset: GUARD };
            self.peer(ends(&there), ends(here), size)?;
            read(&self.gpus[other], &there, &mut arrived).map_err(refuse)?;
            inside[GUARD..GUARD + size].copy_from_slice(&data);
            compare(method, "on the other GPU", size, &arrived, &inside)?;
        }
        Ok(())
    }
}

/// One method under test.
struct Bench<'a> {
    copier: &'a Copier,
    gpu: usize,
    method: Method,
    device: Buffer,
    pinned: Buffer,
}

impl Bench<'_> {
    fn gpu(&self) -> &CopierGpu {
        &self.copier.gpus[self.gpu]
    }

    fn decision(&self, method: Method, relays: Vec<usize>) -> Decision<'_> {
        Decision::of(self.copier.choosers[self.gpu].chosen(CopyChoice::plain(method)), true, relays)
    }

    /// Pinned memory for methods that need it, or that stand in for the reference.
    fn held(&self) -> bool {
        self.method.abilities().needs_pinned()
    }

    fn copy(&self, direction: Direction, host: Host<'_>, len: usize) -> Result<(), CopyError> {
        let device = At { buffer: &self.device, offset: GUARD };
        let mut request = Request::new(self.gpu, direction, device, host, len);
        let relays = (0..self.copier.gpus.len()).filter(|at| self.copier.reaches(*at, self.gpu)).collect();
        self.copier.execute(&mut request, &self.decision(self.method, relays)).map(|_| ())
    }

    fn refuse(&self, error: DeviceError) -> CopyError {
        CopyError::device(self.method, error, 0, 0)
    }

    fn round_in(&self, size: usize, random: &mut Pcg64Mcg) -> Result<(), CopyError> {
        let data = bytes(random, size);
        self.set_device(&guarded(size))?;
        if self.held() {
            self.fill_pinned(&guarded_with(&data)).map_err(|error| self.refuse(error))?;
            self.copy(Direction::H2d, Host::Held(At { buffer: &self.pinned, offset: GUARD }), size)?;
        } else {
            self.copy(Direction::H2d, Host::In(&data), size)?;
        }
        let mut arrived = vec![0; size + 2 * GUARD];
        self.see_device(&mut arrived)?;
        compare(self.method, "to the device", size, &arrived, &guarded_with(&data))
    }

    fn round_out(&self, size: usize, random: &mut Pcg64Mcg) -> Result<(), CopyError> {
        let data = bytes(random, size);
        self.set_device(&guarded_with(&data))?;
        let mut arrived = guarded(size);
        if self.held() {
            self.fill_pinned(&arrived).map_err(|error| self.refuse(error))?;
            self.copy(Direction::D2h, Host::Held(At { buffer: &self.pinned, offset: GUARD }), size)?;
            let span = claim(At { buffer: &self.pinned, offset: 0 }, arrived.len(), Access::Read);
            let span = span.map_err(|error| self.refuse(error))?;
            arrived.copy_from_slice(span.bytes().map_err(|error| self.refuse(error))?);
        } else {
            self.copy(Direction::D2h, Host::Out(&mut arrived[GUARD..GUARD + size]), size)?;
        }
        compare(self.method, "from the device", size, &arrived, &guarded_with(&data))
    }

    fn fill_pinned(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut span = claim(At { buffer: &self.pinned, offset: 0 }, bytes.len(), Access::Write)?;
        span.bytes_mut()?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the device's bytes by another method than the one under test.
    fn set_device(&self, bytes: &[u8]) -> Result<(), CopyError> {
        if self.method != Method::Pageable {
            return write(self.gpu(), &self.device, bytes).map_err(|error| self.refuse(error));
        }
        self.fill_pinned(bytes).map_err(|error| self.refuse(error))?;
        self.by_engine(Direction::H2d, bytes.len())
    }

    /// Reads the bytes of device memory.
    fn see_device(&self, bytes: &mut [u8]) -> Result<(), CopyError> {
        if self.method != Method::Pageable {
            return read(self.gpu(), &self.device, bytes).map_err(|error| self.refuse(error));
        }
        self.by_engine(Direction::D2h, bytes.len())?;
        let span = claim(At { buffer: &self.pinned, offset: 0 }, bytes.len(), Access::Read);
        let span = span.map_err(|error| self.refuse(error))?;
        bytes.copy_from_slice(span.bytes().map_err(|error| self.refuse(error))?);
        Ok(())
    }

    fn by_engine(&self, direction: Direction, len: usize) -> Result<(), CopyError> {
        let (device, host) = (At { buffer: &self.device, offset: 0 }, At { buffer: &self.pinned, offset: 0 });
        let mut request = Request::new(self.gpu, direction, device, Host::Held(host), len);
        self.copier.execute(&mut request, &self.decision(Method::Dma, Vec::new())).map(|_| ())
    }
}

fn write(gpu: &CopierGpu, device: &Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
    let mut span = claim(At { buffer: device, offset: 0 }, bytes.len(), Access::Write)?;
    gpu.device.copy_in(&mut span, bytes)
}

fn read(gpu: &CopierGpu, device: &Buffer, bytes: &mut [u8]) -> Result<(), DeviceError> {
    let span = claim(At { buffer: device, offset: 0 }, bytes.len(), Access::Read)?;
    gpu.device.copy_out(bytes, &span)
}

fn guarded(size: usize) -> Vec<u8> {
    vec![FILL; size + 2 * GUARD]
}

fn guarded_with(data: &[u8]) -> Vec<u8> {
    let mut bytes = guarded(data.len());
    bytes[GUARD..GUARD + data.len()].copy_from_slice(data);
    bytes
}

fn compare(method: Method, where_to: &str, size: usize, is: &[u8], should: &[u8]) -> Result<(), CopyError> {
    let Some(at) = is.iter().zip(should).position(|(is, should)| is != should) else { return Ok(()) };
    let place = match at.checked_sub(GUARD) {
        Some(byte) if byte < size => format!("byte {byte} of {size}"),
        _ => format!("a byte outside the {size} copied"),
    };
    Err(CopyError::Unavailable {
        method,
        source: DeviceError::Unavailable {
            what: format!("`{method}`"),
            reason: format!("its self-test failed: {place} {where_to} is wrong"),
            remedy: "report this; until then another method is used".into(),
        },
    })
}

/// The reason why a method that was tried cannot be used.
fn refusal(method: Method, error: CopyError) -> DeviceError {
    match error {
        CopyError::Unavailable { source, .. } | CopyError::Failed { source, .. } => source,
        CopyError::DeviceLost => DeviceError::DeviceLost,
        error => DeviceError::Unavailable {
            what: format!("`{method}`"),
            reason: format!("its self-test failed: {}", chain(&error)),
            remedy: "report this; until then another method is used".into(),
        },
    }
}

fn bytes(random: &mut Pcg64Mcg, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}
