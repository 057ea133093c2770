//! See `rules` in `fuzz/checks`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_checks::check("rules", data));
