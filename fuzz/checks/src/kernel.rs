//! What the kernel was seen to do, and what it says in text.

use kernelio::kernel_log::cpu::CpuEvent;
use kernelio::kernel_log::faults::Fault;
use kernelio::kernel_log::io::Io;
use kernelio::kernel_log::machine::MachineSample;
use kernelio::kernel_log::residency::ResidencyReader;
use kernelio::kernel_log::stacks::Stacks;
use kernelio::kernel_log::{CPU, FAULTS, IO, MACHINE, RESIDENCY, Reader, Record, STACKS};
use kernelio::{blkparse as text_of_blkparse, extents::DiskMap};

use crate::log::one_line;
use crate::pieces::folder;

/// Input: `log/faults`, `log/io`, `log/residency`, `log/cpu`, `log/stacks` and `log/machine`, as
/// [`crate::FILES`] names them.
pub fn kernel_logs(data: &[u8]) {
    let folder = folder(data);
    let log = folder.path().join("log");
    encodes_back::<Fault>(Reader::open(&log.join(FAULTS)));
    encodes_back::<Io>(Reader::open(&log.join(IO)));
    encodes_back::<CpuEvent>(Reader::open(&log.join(CPU)));
    encodes_back::<MachineSample>(Reader::open(&log.join(MACHINE)));
    match Stacks::read(&log.join(STACKS)) {
        Ok(stacks) => {
            // Callers come before, so that every stack ends.
            let last = stacks.len() as u32;
            assert!(stacks.inwards_out(last).count() <= stacks.len());
        }
        Err(error) => one_line(&error.to_string()),
    }
    if let Ok(samples) = ResidencyReader::open(&log.join(RESIDENCY)) {
        for sample in samples {
            match sample {
                Ok(sample) => {
                    let residency = &sample.residency;
                    assert!(residency.resident_pages() <= residency.pages());
                }
                Err(error) => one_line(&error.to_string()),
            }
        }
    }
}

fn encodes_back<R: Record>(records: Result<Reader<R>, kernelio::KernelError>) {
    let Ok(records) = records else {
        return;
    };
    for record in records {
        match record {
            Ok(record) => {
                let mut bytes = vec![0; R::BYTES];
                record.encode(&mut bytes);
                assert!(R::decode(&bytes).is_ok());
            }
            Err(error) => one_line(&error.to_string()),
        }
    }
}

/// Input: what `blkparse` prints.
pub fn blkparse(data: &[u8]) {
    let mut requests = 0u64;
    let imported = text_of_blkparse::read(data, 0, DiskMap::default(), |io| {
        assert!(io.piece_at_bytes <= io.request_bytes);
        requests += 1;
        Ok(())
    });
    match imported {
        Ok(imported) => {
            assert!(imported.requests <= imported.events && imported.requests <= requests)
        }
        Err(error) => one_line(&error.to_string()),
    }
}

/// Input: `/proc/PID/maps`.
pub fn maps(data: &[u8]) {
    for mapping in support::proc::mappings(data) {
        assert_eq!(mapping.is_of_file(), mapping.inode != 0);
        assert!(mapping.addresses().start == mapping.start);
    }
}
