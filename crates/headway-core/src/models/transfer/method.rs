//! The methods: how bytes can be moved, each with its forms, as one type.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How bytes are moved, in the order that breaks ties. Not which choice is best: [`super::choose()`] says that.
///
/// Where a form is left open (`None`), the method takes the first form that the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Method {
    /// The driver's own call on ordinary memory.
    Pageable,
    /// A copy engine from or to pinned memory (Fujii 2013: standard DMA).
    Dma,
    /// `dma` from or to ordinary memory that is pinned for this one copy and released behind it.
    Register,
    /// Pins the memory in ranges: while one is copied the next is pinned, and the one before is released (Patil and Kulkarni 2021: pinned and overlapped).
    Pinning,
    /// `dma` from or to ordinary memory that is copied again and again, pinned once and kept pinned.
    PinnedOnce,
    /// Threads copy between ordinary memory and pinned buffers while the engine copies on (Cho 2018: double queuing).
    Staged,
    /// The CPU stores into and loads from mapped GPU memory (Fujii 2013: IORW).
    Window(Option<WindowMapping>),
    /// Stores and loads of the CPU through a small mapping that is moved over the GPU's memory (Fujii 2013: MEMWND).
    PagedWindow(Option<WindowMapping>),
    /// A kernel that stays on the GPU copies on command (Fujii 2013: HUB, GPC, GPC4).
    Resident(Option<ResidentShape>),
    /// A kernel launched for one copy reads or writes mapped host memory.
    Kernel,
    /// A copy between two GPUs.
    Peer,
    /// A large copy to or from one GPU over the links of several.
    Multipath,
}

/// How GPU memory comes into the CPU's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowMapping {
    /// By the kernel module `gdrdrv`.
    Gdrdrv,
    /// By Vulkan external memory on the stock driver.
    Vulkan,
    /// By `mmap` of a dma-buf.
    DmaBuf,
}

/// Where on the GPU a resident copier runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResidentShape {
    /// One thread block.
    Hub,
    /// One cluster, whose blocks share a GPC.
    Gpc,
    /// Four clusters on four GPCs.
    Gpc4,
}

/// A text that names no method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no method; write for example `dma`, `dma register` or `window vulkan`")]
pub struct NotAMethod(String);

impl Method {
    /// Every method in each of its forms, in order.
    pub const ALL: [Self; 21] = [
        Self::Pageable,
        Self::Dma,
        Self::Register,
        Self::Pinning,
        Self::PinnedOnce,
        Self::Staged,
        Self::Window(None),
        Self::Window(Some(WindowMapping::Gdrdrv)),
        Self::Window(Some(WindowMapping::Vulkan)),
        Self::Window(Some(WindowMapping::DmaBuf)),
        Self::PagedWindow(None),
        Self::PagedWindow(Some(WindowMapping::Gdrdrv)),
        Self::PagedWindow(Some(WindowMapping::Vulkan)),
        Self::PagedWindow(Some(WindowMapping::DmaBuf)),
        Self::Resident(None),
        Self::Resident(Some(ResidentShape::Hub)),
        Self::Resident(Some(ResidentShape::Gpc)),
        Self::Resident(Some(ResidentShape::Gpc4)),
        Self::Kernel,
        Self::Peer,
        Self::Multipath,
    ];

    /// The word that files and tables use, without the form: `dma`, `window`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::Dma | Self::Register => "dma",
            Self::Pinning => "pinning",
            Self::PinnedOnce => "pinned-once",
            Self::Staged => "staged",
            Self::Window(_) => "window",
            Self::PagedWindow(_) => "paged-window",
            Self::Resident(_) => "resident",
            Self::Kernel => "kernel",
            Self::Peer => "peer",
            Self::Multipath => "multipath",
        }
    }

    /// The word of the form, which files write as `via`: `register`, `vulkan`, `gpc4`.
    #[must_use]
    pub const fn form(self) -> Option<&'static str> {
        match self {
            Self::Register => Some("register"),
            Self::Window(Some(mapping)) | Self::PagedWindow(Some(mapping)) => Some(mapping.word()),
            Self::Resident(Some(shape)) => Some(shape.word()),
            _ => None,
        }
    }

    /// The method of these words; `None` = the method does not exist, or not in this form.
    #[must_use]
    pub fn named(word: &str, form: Option<&str>) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.word() == word && method.form() == form)
    }

    /// The methods with their words and no form, in order.
    #[must_use]
    pub fn words() -> Vec<(&'static str, Self)> {
        Self::ALL.into_iter().filter(|method| method.form().is_none()).map(|method| (method.word(), method)).collect()
    }

    /// The words of the forms that this method's word can go with.
    #[must_use]
    pub fn forms(self) -> Vec<&'static str> {
        Self::ALL.into_iter().filter(|other| other.word() == self.word()).filter_map(Self::form).collect()
    }

    /// How the GPU's memory is mapped, of methods that need it mapped in a certain way.
    #[must_use]
    pub const fn mapping(self) -> Option<WindowMapping> {
        match self {
            Self::Window(mapping) | Self::PagedWindow(mapping) => mapping,
            _ => None,
        }
    }

    /// This method with the form left open, of methods with mappings or shapes.
    #[must_use]
    pub const fn any_form(self) -> Self {
        match self {
            Self::Window(_) => Self::Window(None),
            Self::PagedWindow(_) => Self::PagedWindow(None),
            Self::Resident(_) => Self::Resident(None),
            method => method,
        }
    }
}

/// `resident hub`, `dma`.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            Some(form) => f.pad(&format!("{} {form}", self.word())),
            None => f.pad(self.word()),
        }
    }
}

/// What [`Method`] is displayed as.
impl FromStr for Method {
    type Err = NotAMethod;

    fn from_str(text: &str) -> Result<Self, NotAMethod> {
        let (word, form) = text.split_once(' ').map_or((text, None), |(word, form)| (word, Some(form)));
        Self::named(word, form).ok_or_else(|| NotAMethod(text.to_owned()))
    }
}

impl From<Method> for String {
    fn from(method: Method) -> Self {
        method.to_string()
    }
}

impl TryFrom<String> for Method {
    type Error = NotAMethod;

    fn try_from(text: String) -> Result<Self, NotAMethod> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_listed_once_in_order_and_has_words_of_its_own() {
        assert!(Method::ALL.is_sorted_by(|a, b| a < b));
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
            assert_eq!(Method::named(method.word(), method.form()), Some(method));
            let json = serde_json::to_value(method).expect("plain data");
            assert_eq!(json, method.to_string());
            assert_eq!(serde_json::from_value::<Method>(json).expect("as written"), method);
        }
        assert_eq!(Method::Resident(Some(ResidentShape::Gpc4)).to_string(), "resident gpc4");
        assert_eq!("dma hub".parse::<Method>(), Err(NotAMethod("dma hub".to_owned())));
    }
}
