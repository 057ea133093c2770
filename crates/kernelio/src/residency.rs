//! Which pages of a file are in memory now, as the kernel says (`mincore`).
//!
//! The file is mapped and never read, so that looking changes nothing: a page
//! that is not there is not brought in.
//!
//! Since Linux 5.2 `mincore` answers "all resident" to whoever neither owns the
//! file nor may write to it, lest one user see what another reads. That answer is
//! no data, so it becomes [`ResidencyError::NotAllowed`].

use std::{
    ffi::CString,
    fs::File,
    io,
    ops::Range,
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    ptr::NonNull,
};

use rundir::error::reason;

use crate::kernel_log::residency::runs;
use crate::sampler::Sampler;

/// The pages of one file, at the moment of [`Residency::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    page_bytes: u64,
    file_bytes: u64,
    /// One bit a page, lowest first.
    resident: Vec<u64>,
}

/// Variants differ by what the caller, or the user, can do.
#[derive(Debug, thiserror::Error)]
pub enum ResidencyError {
    /// Check the path and the permissions.
    #[error("{}: {doing}: {}", path.display(), reason(cause))]
    Io {
        path: PathBuf,
        doing: &'static str,
        cause: io::Error,
    },
    /// Look as the owner of the file.
    #[error("{}: the kernel tells only the owner of a file, and who may write to it, which pages are in memory", path.display())]
    NotAllowed { path: PathBuf },
    /// Give a file.
    #[error("{}: not a regular file", path.display())]
    NotAFile { path: PathBuf },
}

impl Residency {
    /// Asks the kernel about every page of the file.
    pub fn of(path: &Path) -> Result<Residency, ResidencyError> {
        Sampler::open(path)?.sample()
    }

    /// From one bit a page, as it was in a log.
    pub(crate) fn from_bits(page_bytes: u64, pages: u64, resident: Vec<u64>) -> Residency {
        Residency::of_file(page_bytes, pages * page_bytes, resident)
    }

    pub(crate) fn of_file(page_bytes: u64, file_bytes: u64, resident: Vec<u64>) -> Residency {
        Residency {
            page_bytes,
            file_bytes,
            resident,
        }
    }

    /// One bit a page, lowest first.
    pub fn bits(&self) -> &[u64] {
        &self.resident
    }

    /// Pages in memory, as runs without a gap.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        runs(self.resident.iter().copied()).map(|(first, pages)| first..first + pages)
    }

    /// Whether [`Residency::of`] would have an answer, at the price of two calls.
    pub fn check(path: &Path) -> Result<(), ResidencyError> {
        open(path).map(drop)
    }

    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Pages of the file; the last may be partly used. What was read back from a log
    /// has only whole ones.
    pub fn pages(&self) -> u64 {
        self.file_bytes.div_ceil(self.page_bytes)
    }

    pub fn resident_pages(&self) -> u64 {
        self.resident
            .iter()
            .map(|w| u64::from(w.count_ones()))
            .sum()
    }

    /// Bytes of the file within `range` that are in memory.
    pub fn resident_bytes(&self, range: Range<u64>) -> u64 {
        let end = range.end.min(self.file_bytes);
        let mut at = range.start;
        let mut bytes = 0;
        while at < end {
            let page = at / self.page_bytes;
            let page_end = end.min((page + 1) * self.page_bytes);
            if self.is_resident(page) {
                bytes += page_end - at;
            }
            at = page_end;
        }
        bytes
    }

    fn is_resident(&self, page: u64) -> bool {
        usize::try_from(page / 64)
            .ok()
            .and_then(|word| self.resident.get(word))
            .is_some_and(|word| (word >> (page % 64)) & 1 == 1)
    }
}

/// The file and its size, where the kernel would tell the truth about it.
pub(crate) fn open(path: &Path) -> Result<(File, u64), ResidencyError> {
    let file = File::open(path).map_err(io_error(path, "cannot open"))?;
    let metadata = file.metadata().map_err(io_error(path, "cannot stat"))?;
    if !metadata.is_file() {
        return Err(ResidencyError::NotAFile {
            path: path.to_owned(),
        });
    }
    if !is_told_the_truth(path, metadata.uid()) {
        return Err(ResidencyError::NotAllowed {
            path: path.to_owned(),
        });
    }
    Ok((file, metadata.len()))
}

pub(crate) fn io_error(
    path: &Path,
    doing: &'static str,
) -> impl FnOnce(io::Error) -> ResidencyError {
    move |cause| ResidencyError::Io {
        path: path.to_owned(),
        doing,
        cause,
    }
}

pub(crate) fn page_bytes() -> u64 {
    // SAFETY: only reads a number of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(1)
}

/// The kernel's own condition, see the head of this file.
fn is_told_the_truth(path: &Path, owner: u32) -> bool {
    // SAFETY: only reads a number of the process.
    let user = unsafe { libc::geteuid() };
    if user == 0 || user == owner {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the string ends with a zero and outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

/// A whole file in the address space, never touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: the mapping is never read or written; a shared `&Mapping` only asks the
// kernel about it.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn of(file: &File, file_bytes: u64) -> io::Result<Mapping> {
        let bytes = usize::try_from(file_bytes).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // other memory; without PROT_READ nobody can read through it, so that a
        // file that shrinks meanwhile does no harm.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { start, bytes })
    }

    /// One byte for each page from page `first` on.
    pub fn ask(&self, first: usize, page_bytes: u64, answer: &mut [u8]) -> io::Result<()> {
        let page_bytes = usize::try_from(page_bytes).map_err(io::Error::other)?;
        let offset = first * page_bytes;
        let length = self
            .bytes
            .saturating_sub(offset)
            .min(answer.len() * page_bytes);
        assert!(
            length.div_ceil(page_bytes) == answer.len(),
            "outside of the file"
        );
        // SAFETY: `offset + length` is inside the mapping, `offset` is a multiple of
        // the page size, and the kernel writes one byte for each page of `length`,
        // which is the length of `answer`.
        let result = unsafe {
            libc::mincore(
                self.start.as_ptr().cast::<u8>().add(offset).cast(),
                length,
                answer.as_mut_ptr(),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this start for this length, and nothing borrows
        // from the mapping.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_file_just_written_is_resident_to_its_last_byte() {
        let file = file_of(&vec![7; 3 * 4096 + 100]);
        let residency = Residency::of(file.path()).unwrap();
        assert_eq!(residency.file_bytes(), 3 * 4096 + 100);
        assert_eq!(residency.resident_pages(), residency.pages());
        assert_eq!(residency.resident_bytes(0..u64::MAX), 3 * 4096 + 100);
        assert_eq!(residency.resident_bytes(4000..4200), 200);
        assert_eq!(residency.resident_bytes(3 * 4096 + 90..u64::MAX), 10);
    }

    #[test]
    fn a_hole_that_nobody_read_is_not_resident() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let residency = Residency::of(file.path()).unwrap();
        assert_eq!(residency.resident_pages(), 0);
        assert_eq!(residency.resident_bytes(0..64 << 20), 0);
    }

    #[test]
    fn bytes_are_counted_by_the_page_they_lie_in() {
        let residency = Residency {
            page_bytes: 4096,
            file_bytes: 70 * 4096,
            // Pages 1 and 65.
            resident: vec![0b10, 0b10],
        };
        assert_eq!(residency.resident_pages(), 2);
        assert_eq!(residency.resident_bytes(0..4096), 0);
        assert_eq!(residency.resident_bytes(4000..5000), 904);
        assert_eq!(residency.resident_bytes(64 * 4096..66 * 4096), 4096);
        let backwards = Range {
            start: 9000,
            end: 5000,
        };
        assert_eq!(residency.resident_bytes(backwards), 0);
    }

    #[test]
    fn an_empty_file_has_no_pages() {
        let residency = Residency::of(file_of(b"").path()).unwrap();
        assert_eq!((residency.pages(), residency.resident_bytes(0..9)), (0, 0));
    }

    #[test]
    fn what_is_no_file_is_said_to_be_none() {
        let folder = tempfile::tempdir().unwrap();
        let error = Residency::of(folder.path()).unwrap_err();
        assert!(error.to_string().ends_with("not a regular file"), "{error}");
        let missing = folder.path().join("missing");
        assert!(matches!(
            Residency::of(&missing),
            Err(ResidencyError::Io { .. })
        ));
    }
}
