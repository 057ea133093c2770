//! Functions that a newer glibc has, or has in a new version: with them from here (build.rs
//! sends calls to them) the program runs on a system with glibc 2.34. Nothing else in it asks
//! for a newer one.

/// A random number, since glibc 2.36; the C++ library that is linked in asks for it.
#[unsafe(no_mangle)]
extern "C" fn __wrap_arc4random() -> u32 {
    let mut number = 0_u32;
    // SAFETY: writes into a number of that size. So few bytes come at once, or never.
    unsafe { libc::getrandom((&raw mut number).cast(), size_of::<u32>(), 0) };
    number
}

/// The hypotenuse, since glibc 2.35: squares of such numbers are exact in twice the bits, and cannot overflow.
#[unsafe(no_mangle)]
extern "C" fn __wrap_hypotf(x: f32, y: f32) -> f32 {
    if x.is_infinite() || y.is_infinite() {
        return f32::INFINITY;
    }
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::__wrap_hypotf as hypot;

    #[test]
    fn it_is_what_the_standard_library_says() {
        for (x, y) in [
            (3.0, 4.0),
            (-1.5, 0.0),
            (f32::MAX, 1.0),
            (f32::MAX, f32::MAX),
            (1e-30, 1e-30),
            (f32::INFINITY, f32::NAN),
            (0.1, 0.7),
        ] {
            assert_eq!(hypot(x, y), x.hypot(y), "{x} {y}");
        }
        assert!(hypot(f32::NAN, 1.0).is_nan());
    }
}
