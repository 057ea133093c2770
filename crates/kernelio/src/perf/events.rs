//! The same events on every cpu, for every thread of a program.
//!
//! An event of a thread that writes into a ring belongs to one cpu, so each thread has one
//! of each kind for each cpu. The rings are those of the first kind of the first thread, one
//! a cpu; all others write into them, too.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use super::ring::Ring;
use super::{Attributes, Event, flag, online_cpus, pump};
use crate::error::{KernelError, Missing};

/// Whose events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All threads that this process has now, and what they start.
    ThisProcess,
    /// A child between fork and exec, from its exec on: see
    /// [`launch::spawn_held`](crate::launch::spawn_held).
    Child(u32),
}

/// Opened and not yet enabled; of a child, enabled by its exec.
#[derive(Debug)]
pub(crate) struct Events {
    /// By kind; each with the number of its cpu in the list of them.
    by_kind: Vec<Vec<(usize, Event)>>,
    cpus: usize,
}

impl Events {
    /// `kinds`: what to open, the first of which also reports what the program maps and
    /// starts, where it is asked to. `open` may open less than it is told.
    pub fn open(
        target: Target,
        except_tid: u32,
        kinds: &[Attributes],
        mut open: impl FnMut(Attributes, u32, u32) -> Result<Event, Missing>,
    ) -> Result<Events, KernelError> {
        let cpus = online_cpus().map_err(KernelError::system("cannot list the cpus"))?;
        let (tids, start_flags) = match target {
            Target::Child(pid) => (vec![pid], flag::DISABLED | flag::ENABLE_ON_EXEC),
            Target::ThisProcess => (own_threads(except_tid)?, flag::DISABLED),
        };
        let mut by_kind: Vec<Vec<(usize, Event)>> = kinds.iter().map(|_| Vec::new()).collect();
        for tid in tids {
            let each = (0..cpus.len()).flat_map(|cpu| (0..kinds.len()).map(move |k| (cpu, k)));
            for (cpu, kind) in each {
                let mut attributes = kinds[kind];
                attributes.flags |= start_flags;
                match open(attributes, tid, cpus[cpu]) {
                    Ok(event) => by_kind[kind].push((cpu, event)),
                    // A thread may end between the list and here.
                    Err(_) if target == Target::ThisProcess && !is_thread(tid) => break,
                    Err(missing) => return Err(KernelError::Missing(missing)),
                }
            }
        }
        Ok(Events {
            by_kind,
            cpus: cpus.len(),
        })
    }

    /// What samples of a kind are marked with, sorted: there is one for each thread and cpu,
    /// and each sample is looked up.
    pub fn ids(&self, kind: usize) -> Result<Vec<u64>, KernelError> {
        let ids: io::Result<Vec<u64>> = self.by_kind[kind].iter().map(|(_, e)| e.id()).collect();
        let mut ids = ids.map_err(KernelError::system("cannot set up events"))?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// The rings of all cpus.
    pub fn map_rings(&self) -> Result<Vec<Ring>, KernelError> {
        let failed = || KernelError::system("cannot map memory for events");
        let owners = self.owners();
        let map = |event: &Event| pump::map_ring(event, owners.len());
        let rings: io::Result<Vec<Ring>> = owners.iter().map(|(_, event)| map(event)).collect();
        let rings = rings.map_err(failed())?;
        let is_owner = |event: &Event| {
            let mut owners = owners.iter();
            owners.any(|(_, owner)| owner.descriptor() == event.descriptor())
        };
        for (cpu, event) in self.by_kind.iter().flatten() {
            if is_owner(event) {
                continue;
            }
            if let Some((_, owner)) = owners.get(*cpu) {
                event.send_to(owner).map_err(failed())?;
            }
        }
        Ok(rings)
    }

    /// What becomes readable when a ring fills.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let owners = self.owners().iter();
        owners.map(|(_, event)| event.descriptor()).collect()
    }

    pub fn enable(&self) -> Result<(), KernelError> {
        self.each(Event::enable, "cannot start counting")
    }

    pub fn disable(&self) -> Result<(), KernelError> {
        self.each(Event::disable, "cannot stop counting")
    }

    /// How many there were of a kind, counted by the kernel apart from the samples.
    pub fn count(&self, kind: usize) -> Result<u64, KernelError> {
        let events = self.by_kind.get(kind).into_iter().flatten();
        let counts: io::Result<Vec<u64>> = events.map(|(_, event)| event.count()).collect();
        let counts = counts.map_err(KernelError::system("cannot read how many there were"))?;
        Ok(counts.iter().sum())
    }

    fn each(
        &self,
        act: impl Fn(&Event) -> io::Result<()>,
        doing: &'static str,
    ) -> Result<(), KernelError> {
        let mut events = self.by_kind.iter().flatten();
        let done = events.try_for_each(|(_, event)| act(event));
        done.map_err(KernelError::system(doing))
    }

    /// Of the first kind and thread, one for each cpu.
    fn owners(&self) -> &[(usize, Event)] {
        let first = self.by_kind.first().map_or(&[][..], Vec::as_slice);
        &first[..self.cpus.min(first.len())]
    }
}

fn own_threads(except_tid: u32) -> Result<Vec<u32>, KernelError> {
    let folder = Path::new("/proc/self/task");
    let entries = fs::read_dir(folder).map_err(KernelError::io(folder, "cannot list"))?;
    let tids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(tids.filter(|tid| *tid != except_tid).collect())
}

fn is_thread(tid: u32) -> bool {
    Path::new(&format!("/proc/self/task/{tid}")).exists()
}
