//! `hypot` has a new version since glibc 2.35 (it sets no error number any more), and DataFusion
//! uses it. With the old one (build.rs sends calls here) the program runs on a system with
//! glibc 2.34, as `tensorscope` itself does.

core::arch::global_asm!(
    ".symver tensorscope_old_hypot, hypot@GLIBC_2.2.5",
    ".symver tensorscope_old_hypotf, hypotf@GLIBC_2.2.5",
);

unsafe extern "C" {
    safe fn tensorscope_old_hypot(x: f64, y: f64) -> f64;
    safe fn tensorscope_old_hypotf(x: f32, y: f32) -> f32;
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_hypot(x: f64, y: f64) -> f64 {
    tensorscope_old_hypot(x, y)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_hypotf(x: f32, y: f32) -> f32 {
    tensorscope_old_hypotf(x, y)
}
