//! Where tracefs is, and where the fields of the block tracepoints are, as the kernel
//! itself describes them.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{KernelError, Missing};
use crate::leftover::Leftover;

/// Where tracefs is usually mounted; the first is where it belongs.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const BELONGS: &CStr = c"/sys/kernel/tracing";

/// One field of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    offset: usize,
    bytes: usize,
}

impl Field {
    pub fn bytes<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        raw.get(self.offset..)?.get(..self.bytes)
    }

    pub fn u32(&self, raw: &[u8]) -> Option<u32> {
        self.bytes(raw)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Sectors have 4 bytes on some 32-bit kernels.
    pub fn u64(&self, raw: &[u8]) -> Option<u64> {
        match self.bytes {
            8 => self.bytes(raw)?.try_into().ok().map(u64::from_ne_bytes),
            _ => self.u32(raw).map(u64::from),
        }
    }
}

/// What a tracepoint tells of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Issue,
    Complete,
    /// It will be issued again.
    PutBack,
}

/// The fields that we need of one tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub name: &'static str,
    pub what: What,
    pub id: u64,
    pub device: Field,
    pub sector: Field,
    pub sectors: Field,
    pub rwbs: Field,
    /// Who ran when it happened.
    pub thread: Field,
}

#[derive(Clone, Debug)]
pub(super) struct Layouts {
    pub issue: Layout,
    complete: Layout,
    put_back: Layout,
}

impl Layouts {
    pub fn all(&self) -> impl Iterator<Item = &Layout> {
        [&self.issue, &self.complete, &self.put_back].into_iter()
    }
}

/// Reads the layouts.
pub(super) fn layouts(root: &Path) -> Result<Layouts, KernelError> {
    let layout = |what, name: &'static str| {
        let path = root.join("events/block").join(name).join("format");
        let text = fs::read_to_string(&path).map_err(|cause| match cause.kind() {
            io::ErrorKind::PermissionDenied => KernelError::Missing(not_readable(root)),
            io::ErrorKind::NotFound => KernelError::Missing(Missing {
                what: "block requests".to_owned(),
                why: format!("this kernel has no tracepoint block:{name}"),
                fix: "use a kernel with CONFIG_BLK_DEV_IO_TRACE or CONFIG_EVENT_TRACING".to_owned(),
            }),
            _ => KernelError::io(&path, "cannot read")(cause),
        })?;
        parse(name, what, &text).ok_or_else(|| KernelError::Unsuitable {
            path,
            what: "fields of a tracepoint in an unknown form".to_owned(),
        })
    };
    Ok(Layouts {
        issue: layout(What::Issue, "block_rq_issue")?,
        complete: layout(What::Complete, "block_rq_complete")?,
        put_back: layout(What::PutBack, "block_rq_requeue")?,
    })
}

/// Where tracefs is.
#[derive(Debug)]
pub(super) struct Tracefs {
    pub root: PathBuf,
    /// If we had to mount it: until this is dropped.
    _mounted: Option<Leftover>,
}

/// Finds tracefs; mounts it when it is nowhere and we may.
pub(super) fn find() -> Result<Tracefs, KernelError> {
    for place in PLACES {
        // Without permission it cannot be seen whether something is inside.
        match fs::metadata(Path::new(place).join("events")) {
            Ok(_) => {
                return Ok(Tracefs {
                    root: place.into(),
                    _mounted: None,
                });
            }
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
                return Err(KernelError::Missing(not_readable(Path::new(place))));
            }
            Err(_) => {}
        }
    }
    match Leftover::tracefs(BELONGS) {
        Ok(mounted) => Ok(Tracefs {
            root: PLACES[0].into(),
            _mounted: Some(mounted),
        }),
        Err(error) => Err(KernelError::Missing(Missing {
            what: "block requests".to_owned(),
            why: format!("tracefs is not mounted ({error})"),
            fix: format!(
                "mount it with `sudo mount -t tracefs tracefs {}`",
                PLACES[0]
            ),
        })),
    }
}

/// Whether instances can be made.
pub(super) fn may_trace(root: &Path) -> bool {
    let path = root.join("instances");
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    // SAFETY: the string ends with a zero and outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

fn not_readable(root: &Path) -> Missing {
    Missing {
        what: "block requests".to_owned(),
        why: format!("{} may be read by root only", root.display()),
        fix: "run with sudo".to_owned(),
    }
}

/// `ID: 2104` and `field:dev_t dev; offset:8; size:4; signed:0;`.
fn parse(name: &'static str, what: What, text: &str) -> Option<Layout> {
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok())?;
    let field = |name: &str| text.lines().find_map(|line| parse_field(line, name));
    Some(Layout {
        name,
        what,
        id,
        device: field("dev")?,
        sector: field("sector")?,
        sectors: field("nr_sector")?,
        rwbs: field("rwbs")?,
        thread: field("common_pid")?,
    })
}

fn parse_field(line: &str, name: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let declared = declaration.rsplit(' ').next()?.split('[').next()?;
    if declared != name {
        return None;
    }
    Some(Field {
        offset: parts.next()?.strip_prefix("offset:")?.parse().ok()?,
        bytes: parts.next()?.strip_prefix("size:")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "name: block_rq_issue\nID: 2104\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
            \n\
            \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
            \tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;\n\
            \tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;\n\
            \tfield:char rwbs[10];\toffset:34;\tsize:10;\tsigned:0;\n\
            print fmt: \"%d,%d %s\", REC->dev\n";
        let layout = parse("a", What::Issue, text).unwrap();
        assert_eq!(layout.id, 2104);
        let place = |field: Field| (field.offset, field.bytes);
        assert_eq!(place(layout.device), (8, 4));
        assert_eq!(place(layout.sector), (16, 8));
        assert_eq!(place(layout.sectors), (24, 4));
        assert_eq!(place(layout.rwbs), (34, 10));
        assert_eq!(
            parse("a", What::Issue, &text.replace("rwbs", "other")),
            None
        );
        assert_eq!(layout.sector.u64(&[0; 20]), None);
    }
}
