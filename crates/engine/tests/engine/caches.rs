//! The KV cache held against the MMU, as the audit does with weights: cells that
//! a graph reads or writes are those that the trace claims.
//!
//! A cache is memory of llama.cpp's own, so what is watched is found in the log
//! of a first run in the same context: the addresses of its `cache_*` tensors.

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use capture::{
    BatchToken,
    hook::{self, Call, Ended, Part, Stop},
};
use engine::{
    EngineError,
    context::{Context, ContextProps, FlashAttention, Windows},
    generate::{GenerateProps, Observer, generate},
    model::Model,
    recording::Recording,
};
use gguf::{GgmlType, write::Split};
use trace::{
    expand::for_each_access,
    format::Phase,
    read::{Definitions, Evaluation},
    template::TensorKind,
};

use crate::fixtures::{Plain, Run, alone, greedy, load, prompt, read_back, tiny, write};

const PAGE_BYTES: u64 = 4096;

/// Whether a kernel may pass over cells that the trace claims.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Claims {
    Exact,
    /// FLASH_ATTN_EXT skips cells that the mask hides.
    AtMost,
}

#[test]
fn each_evaluation_claims_the_cells_that_the_mmu_saw() {
    use FlashAttention::{Off, On};
    for (preset, flash_attention, cache_type, sequences, claims) in [
        ("llama-2-7b", Off, GgmlType::F16, 1, Claims::Exact),
        ("llama-2-7b", On, GgmlType::F16, 2, Claims::AtMost),
        ("llama-3-8b", Off, GgmlType::F32, 2, Claims::Exact),
        ("llama-3-8b", On, GgmlType::Q8_0, 1, Claims::AtMost),
        ("gemma-3-1b", Off, GgmlType::F16, 1, Claims::Exact),
        ("gemma-3-1b", On, GgmlType::F16, 1, Claims::AtMost),
        ("gpt-oss-20b", Off, GgmlType::F16, 1, Claims::Exact),
        ("deepseek-v2-lite", Off, GgmlType::F16, 1, Claims::Exact),
        ("deepseek-v2-lite", On, GgmlType::F16, 2, Claims::AtMost),
        ("mamba-130m", Off, GgmlType::F16, 2, Claims::Exact),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let model = load(&write(&tiny(preset), directory.path(), Split::Whole));
        let props = ContextProps {
            threads: 2,
            context: 1024,
            micro_batch: 100,
            sequences,
            key_type: cache_type,
            value_type: cache_type,
            flash_attention,
            ..ContextProps::default()
        };
        let label = format!(
            "{preset} flash {flash_attention:?} {} x{sequences}",
            cache_type.name()
        );
        check(&label, &model, props, claims);
    }
}

#[test]
fn windows_have_as_many_cells_as_they_need() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let model = load(&write(&tiny("gemma-3-1b"), directory.path(), Split::Whole));
    let context = |windows| {
        let props = ContextProps {
            context: 4096,
            windows,
            ..ContextProps::default()
        };
        Context::new(&model, props).unwrap()
    };
    let bytes = |windows| -> u64 {
        let memory = context(windows).memory();
        memory.iter().map(|of| of.context_bytes).sum()
    };
    let question = gguf::Question {
        context_tokens: Some(4096),
        ..gguf::Question::default()
    };
    let said = gguf::Summary::new(&model.gguf, &question).kv_cache;
    let narrow = said.llama_cpp_bytes_at_context;
    assert_eq!(bytes(Windows::Narrow), narrow);
    assert_eq!(bytes(Windows::Whole), said.whole_windows_bytes_at_context);
    assert!(narrow < said.whole_windows_bytes_at_context);
    // Longer than a window.
    let what = greedy(vec![prompt(&model, 700)], 24);
    let said = |windows| {
        let mut context = context(windows);
        generate(&model, &mut context, &what, &mut Plain).unwrap()
    };
    let (narrow, whole) = (said(Windows::Narrow), said(Windows::Whole));
    assert_eq!(narrow.tokens, whole.tokens);
}

fn check(label: &str, model: &Model, props: ContextProps, claims: Claims) {
    let _alone = alone();
    let prompts = (0..props.sequences)
        .map(|s| prompt(model, 250 - 100 * s))
        .collect();
    let what = greedy(prompts, 12);
    let mut context = Context::new(model, props).unwrap();
    let first = record_watched(model, &mut context, &what, None);
    let mut watch = CacheWatch::of(&first.reader.definitions);
    context.clear();
    let run = record_watched(model, &mut context, &what, Some(&mut watch));
    assert_eq!(run.generated, first.generated, "{label}");
    assert_eq!(run.evaluations.len(), watch.touched.len(), "{label}");
    let mut figures = [0; 3];
    for (evaluation, touched) in run.evaluations.iter().zip(&watch.touched) {
        let claimed = watch.claimed(&run, evaluation);
        let missed: Vec<_> = touched.difference(&claimed).collect();
        assert!(
            missed.is_empty(),
            "{label}: evaluation {}: not claimed: {missed:?}",
            evaluation.number
        );
        if claims == Claims::Exact {
            let extra: Vec<_> = claimed.difference(touched).collect();
            assert!(
                extra.is_empty(),
                "{label}: evaluation {}: not touched: {extra:?}",
                evaluation.number
            );
        }
        assert!(!touched.is_empty(), "{label}");
        figures = [
            figures[0] + touched.len(),
            figures[1] + claimed.len(),
            figures[2] + watch.pages.len(),
        ];
    }
    let [touched, claimed, pages] = figures;
    println!("{label}: {touched} pages of the cache touched, {claimed} claimed, of {pages}");
}

/// Pages that lie in caches from their first byte to their last: others are
/// shared with memory that is not ours to protect.
struct CacheWatch {
    pages: Vec<u64>,
    /// By evaluation.
    touched: Vec<BTreeSet<u64>>,
    old_action: Option<libc::sigaction>,
    marks: Box<Marks>,
}

/// What the signal handler needs.
struct Marks {
    first_page: u64,
    bits: Vec<AtomicU64>,
    is_watched: Vec<bool>,
}

static MARKS: AtomicPtr<Marks> = AtomicPtr::new(std::ptr::null_mut());

impl CacheWatch {
    fn of(definitions: &Definitions) -> CacheWatch {
        let pages: BTreeSet<u64> = definitions
            .tensors
            .iter()
            .filter(|tensor| tensor.kind == TensorKind::KvCache)
            .flat_map(|t| t.address.div_ceil(PAGE_BYTES)..(t.address + t.size_bytes) / PAGE_BYTES)
            .collect();
        let (first, last) = (*pages.first().unwrap(), *pages.last().unwrap());
        let marks = Box::new(Marks {
            first_page: first,
            bits: (first..=last).map(|_| AtomicU64::new(0)).collect(),
            is_watched: (first..=last).map(|page| pages.contains(&page)).collect(),
        });
        CacheWatch {
            pages: pages.into_iter().collect(),
            touched: Vec::new(),
            old_action: None,
            marks,
        }
    }

    /// Watched pages that the trace says an evaluation reads or writes.
    fn claimed(&self, run: &Run, evaluation: &Evaluation) -> BTreeSet<u64> {
        let template = run.template(evaluation);
        let mut claimed = BTreeSet::new();
        for step in 0..template.steps.len() {
            for_each_access(template, evaluation, step, |access| {
                let tensor = &run.reader.definitions.tensors[access.def.tensor as usize];
                if tensor.kind == TensorKind::KvCache {
                    access.region.for_each_run(|offset, bytes| {
                        let start = tensor.address + offset;
                        claimed.extend(start / PAGE_BYTES..=(start + bytes - 1) / PAGE_BYTES);
                    });
                }
            });
        }
        claimed.retain(|page| self.pages.binary_search(page).is_ok());
        claimed
    }

    fn protect(&self, protection: libc::c_int) {
        for run in self.pages.chunk_by(|a, b| a + 1 == *b) {
            let bytes = run.len() * PAGE_BYTES as usize;
            // SAFETY: whole pages of a live cache; early accesses end in our handler.
            let failed = unsafe {
                libc::mprotect(
                    (run[0] * PAGE_BYTES) as *mut libc::c_void,
                    bytes,
                    protection,
                )
            };
            assert_eq!(failed, 0);
        }
    }
}

impl hook::Observer for CacheWatch {
    unsafe fn begin(&mut self, _: &Call<'_>) -> Result<Part, Stop> {
        self.marks
            .bits
            .iter()
            .for_each(|bit| bit.store(0, Ordering::Relaxed));
        MARKS.store(&raw mut *self.marks, Ordering::Release);
        // SAFETY: a zeroed sigaction is valid; the handler does what one may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
            let mut old: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, &mut old), 0);
            self.old_action = Some(old);
        }
        self.protect(libc::PROT_NONE);
        Ok(Part::Takes { note_words: 0 })
    }

    fn end(&mut self, _: Ended, _: &mut Vec<u64>) -> Result<(), Stop> {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        let old = self.old_action.take().unwrap();
        // SAFETY: the action that was there before.
        unsafe { libc::sigaction(libc::SIGSEGV, &old, std::ptr::null_mut()) };
        MARKS.store(std::ptr::null_mut(), Ordering::Release);
        let touched = self
            .marks
            .bits
            .iter()
            .enumerate()
            .filter(|(_, bit)| bit.load(Ordering::Relaxed) != 0);
        self.touched.push(
            touched
                .map(|(at, _)| self.marks.first_page + at as u64)
                .collect(),
        );
        Ok(())
    }
}

unsafe extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; the marks live while they are set.
    let (address, marks) = unsafe {
        (
            (*info).si_addr() as u64,
            MARKS.load(Ordering::Acquire).as_ref(),
        )
    };
    let page = address / PAGE_BYTES;
    let at = marks
        .and_then(|m| page.checked_sub(m.first_page))
        .map_or(usize::MAX, |at| at as usize);
    match marks {
        Some(marks) if marks.is_watched.get(at) == Some(&true) => {
            marks.bits[at].store(1, Ordering::Relaxed);
            let start = (page * PAGE_BYTES) as *mut libc::c_void;
            // SAFETY: a page of the cache.
            unsafe {
                libc::mprotect(
                    start,
                    PAGE_BYTES as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                )
            };
        }
        // SAFETY: the default action is always allowed; the fault happens again.
        _ => unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        },
    }
}

struct Watched<'a> {
    model: &'a Model,
    recording: Recording,
    phase: Phase,
    guard: Option<&'a mut CacheWatch>,
}

impl Observer for Watched<'_> {
    fn before(&mut self, phase: Phase, _: &[BatchToken]) -> ControlFlow<()> {
        self.phase = phase;
        ControlFlow::Continue(())
    }
    fn decode(
        &mut self,
        context: &mut Context<'_>,
        batch: &[BatchToken],
        wants_logits: &dyn Fn(usize) -> bool,
    ) -> Result<(), EngineError> {
        let mut guards: Vec<&mut dyn hook::Observer> = Vec::new();
        if let Some(guard) = self.guard.as_deref_mut() {
            guards.push(guard);
        }
        let recording = &mut self.recording;
        recording.decode(
            self.model,
            context,
            self.phase,
            batch,
            wants_logits,
            &mut guards,
        )
    }
    fn token(&mut self, _: usize, _: i32) {}
}

fn record_watched(
    model: &Model,
    context: &mut Context<'_>,
    what: &GenerateProps,
    guard: Option<&mut CacheWatch>,
) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::start(model, directory.path(), Box::new(|e| panic!("{e}"))).unwrap();
    let mut watched = Watched {
        model,
        recording,
        phase: Phase::Prompt,
        guard,
    };
    let generated = generate(model, context, what, &mut watched).unwrap();
    let log_bytes = watched.recording.log_bytes();
    let status = watched.recording.finish().unwrap();
    assert_eq!((status.evals_lost, status.tick_mismatches), (0, 0));
    read_back(directory, generated, log_bytes, status.evals_committed)
}
