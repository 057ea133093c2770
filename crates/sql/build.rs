//! Sends calls of functions that old systems lack to src/older_glibc.rs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_x86_64 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    for symbol in ["hypot", "hypotf"].iter().filter(|_| is_x86_64) {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap={symbol}");
    }
}
