//! The stubs, called as C calls them: each argument arrives, and behind them the place that
//! the call returns to.

use std::{cell::Cell, ffi::c_void, hint::black_box};

use super::{
    CONTEXT, LAST_CONTEXT, computing_context, forget_last, last_context, replace_decoding,
};

thread_local! {
    static SEEN: Cell<([usize; 3], usize)> = const { Cell::new(([0; 3], 0)) };
}

const ANSWER: usize = 42;

unsafe extern "C" fn one(a: usize, caller: usize) -> usize {
    SEEN.set(([a, 0, 0], caller));
    ANSWER
}

unsafe extern "C" fn two(a: usize, b: usize, caller: usize) -> usize {
    SEEN.set(([a, b, 0], caller));
    ANSWER
}

unsafe extern "C" fn three(a: usize, b: usize, c: usize, caller: usize) -> usize {
    SEEN.set(([a, b, c], caller));
    ANSWER
}

// In the registers of the functions above with as many arguments.
export!(tensorscope_test_one => one, "rsi", "x1");
export!(tensorscope_test_two => two, "rdx", "x2");
export!(tensorscope_test_three => three, "rcx", "x3");

/// The functions take three arguments at most: C passes more in vain.
#[inline(never)]
fn call(stub: *const c_void) -> usize {
    // SAFETY: one of the stubs above.
    let answer = unsafe {
        let stub: unsafe extern "C" fn(usize, usize, usize) -> usize = std::mem::transmute(stub);
        stub(11, 12, 13)
    };
    // Not the last thing that is done, or the stub would return to our caller.
    black_box(answer)
}

#[test]
fn a_stub_passes_on_its_arguments_and_who_called() {
    let stubs = [
        (tensorscope_test_one as *const c_void, [11, 0, 0]),
        (tensorscope_test_two as *const c_void, [11, 12, 0]),
        (tensorscope_test_three as *const c_void, [11, 12, 13]),
    ];
    let start = call as *const () as usize;
    for (stub, expected) in stubs {
        assert_eq!(call(black_box(stub)), ANSWER);
        let (arguments, caller) = SEEN.get();
        assert_eq!(arguments, expected);
        assert!(
            (start..start + 1024).contains(&caller),
            "{caller:#x} is not in {start:#x}"
        );
    }
}

#[test]
fn copies_around_a_computation_belong_to_its_scheduler() {
    const DECODES: usize = 8;
    const SCHEDULER: usize = 16;
    // As `decode` and the scheduler inside of it do.
    let before = replace_decoding(DECODES);
    let outside = CONTEXT.replace(SCHEDULER);
    LAST_CONTEXT.set(computing_context());
    CONTEXT.set(outside);
    // Logits are copied before `decode` returns.
    assert_eq!(last_context(), SCHEDULER);
    replace_decoding(before);
    assert_eq!(last_context(), SCHEDULER);
    forget_last(DECODES);
    assert_eq!(last_context(), SCHEDULER);
    forget_last(SCHEDULER);
    assert_eq!(last_context(), 0);
}

#[test]
fn without_a_scheduler_what_decodes_stands_for_it() {
    let before = replace_decoding(8);
    assert_eq!(computing_context(), 8);
    replace_decoding(before);
    assert_eq!(computing_context(), 0);
}
