//! A segment: one file of a stream, mapped into memory while it is written.
//!
//! The mapping is shared, so what the recording thread stores is in the page
//! cache at once and survives the death of the process. Before a segment is
//! handed to the recording thread its blocks are allocated and its pages are
//! faulted in for writing: afterwards a store can neither fail for lack of space
//! nor wait for the disk.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    mem::ManuallyDrop,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::format::{SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, VERSION};

/// Linux 5.14; the fallback below covers older kernels.
const MADV_POPULATE_WRITE: libc::c_int = 23;

pub struct Segment {
    base: *mut u64,
    bytes: usize,
    file: OwnFile,
    path: PathBuf,
}

/// A file that may be taken away from us: the program that we live in may close
/// all descriptors (as daemons do) and get the number for a file of its own,
/// which must then be neither cut nor closed.
struct OwnFile {
    file: ManuallyDrop<File>,
    device_and_inode: (u64, u64),
}

impl OwnFile {
    fn new(file: File) -> io::Result<OwnFile> {
        let about = file.metadata()?;
        Ok(OwnFile {
            file: ManuallyDrop::new(file),
            device_and_inode: (about.dev(), about.ino()),
        })
    }

    /// `None` when the descriptor is not ours any more.
    fn metadata(&self) -> Option<Metadata> {
        let about = self.file.metadata().ok()?;
        (self.device_and_inode == (about.dev(), about.ino())).then_some(about)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.metadata().is_some() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

// SAFETY: a segment owns its mapping; it is used by one thread at a time.
unsafe impl Send for Segment {}

/// Where segment `index` of stream `stream` lives.
pub fn segment_path(log_directory: &Path, stream: u32, index: u32) -> PathBuf {
    log_directory.join(format!("{stream:04}-{index:06}.tslog"))
}

impl Segment {
    /// Creates the file, allocates `bytes` on disk, maps and pre-faults it.
    /// `stream_word` is the position in the stream of the segment's first word.
    pub fn create(
        log_directory: &Path,
        stream: u32,
        index: u32,
        stream_word: u64,
        bytes: usize,
    ) -> io::Result<Segment> {
        let path = segment_path(log_directory, stream, index);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        let segment = Segment::fill(file, path.clone(), stream, index, stream_word, bytes);
        if segment.is_err() {
            // An empty file says nothing; the status page has the reason.
            let _ = std::fs::remove_file(&path);
        }
        segment
    }

    fn fill(
        file: File,
        path: PathBuf,
        stream: u32,
        index: u32,
        stream_word: u64,
        bytes: usize,
    ) -> io::Result<Segment> {
        allocate(&file, bytes)?;
        // SAFETY: a fresh shared mapping of a file of `bytes` bytes; the result
        // is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let file = match OwnFile::new(file) {
            Ok(file) => file,
            Err(error) => {
                // SAFETY: mapped above, and nobody has the address.
                unsafe { libc::munmap(base, bytes) };
                return Err(error);
            }
        };
        let segment = Segment {
            base: base.cast(),
            bytes,
            file,
            path,
        };
        segment.populate()?;
        let mut header = [0u8; SEGMENT_HEADER_BYTES];
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&(SEGMENT_HEADER_BYTES as u32).to_le_bytes());
        header[16..20].copy_from_slice(&stream.to_le_bytes());
        header[20..24].copy_from_slice(&index.to_le_bytes());
        header[24..32].copy_from_slice(&stream_word.to_le_bytes());
        // SAFETY: the mapping is at least one page long and nobody else has it.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), segment.base.cast(), header.len())
        };
        // The magic number last: a process killed before this leaves a file that a
        // reader takes for a segment that was never made, not for a damaged one.
        let magic = u64::from_le_bytes(SEGMENT_MAGIC);
        // SAFETY: the first, aligned word of the mapping.
        unsafe { AtomicU64::from_ptr(segment.base).store(magic, Ordering::Release) };
        Ok(segment)
    }

    fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is our own mapping; populating changes no content.
        if unsafe { libc::madvise(self.base.cast(), self.bytes, MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Anything but "unknown advice" means that stores would fail too, with a
        // signal: then the segment must not be used.
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        for page in (0..self.bytes).step_by(4096) {
            // SAFETY: inside the mapping; the file is all zeros here.
            unsafe { self.base.cast::<u8>().add(page).write_volatile(0) };
        }
        Ok(())
    }

    /// First word after the header.
    pub fn first(&self) -> *mut u64 {
        // SAFETY: the mapping is longer than the header.
        unsafe { self.base.add(SEGMENT_HEADER_BYTES / 8) }
    }

    /// One past the last word.
    pub fn end(&self) -> *mut u64 {
        // SAFETY: one past the end of the mapping.
        unsafe { self.base.add(self.bytes / 8) }
    }

    /// Cuts the file after `end`, which points into this segment.
    pub fn truncate(&self, end: *const u64) -> io::Result<()> {
        let bytes = end as usize - self.base as usize;
        if self.file.metadata().is_some() {
            return self.file.file.set_len(bytes as u64);
        }
        let file = OwnFile::new(OpenOptions::new().write(true).open(&self.path)?)?;
        if file.device_and_inode != self.file.device_and_inode {
            return Err(io::ErrorKind::NotFound.into());
        }
        file.file.set_len(bytes as u64)
    }

    /// Whether the file still has a name. It loses it when somebody removes the
    /// log while we write, which no store notices.
    pub fn is_linked(&self) -> io::Result<bool> {
        if let Some(about) = self.file.metadata() {
            return Ok(about.nlink() > 0);
        }
        let about = std::fs::metadata(&self.path);
        Ok(about.is_ok_and(|a| (a.dev(), a.ino()) == self.file.device_and_inode))
    }

    /// Removes the file of a segment that was never used.
    pub fn discard(self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Words of records that a segment of `bytes` holds.
    pub fn capacity_words(bytes: usize) -> usize {
        (bytes - SEGMENT_HEADER_BYTES) / 8
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `fill` with this length; the owner keeps no pointer.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Reserves blocks, by writing zeros where the file system cannot reserve.
fn allocate(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: a valid descriptor; fallocate has no memory arguments.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {}
        _ => return Err(error),
    }
    let zeros = [0u8; 65536];
    let mut file = file;
    file.seek(SeekFrom::Start(0))?;
    let mut left = bytes;
    while left > 0 {
        let step = left.min(zeros.len());
        file.write_all(&zeros[..step])?;
        left -= step;
    }
    Ok(())
}
