//! A loaded model.

use std::{
    ffi::{CString, c_char},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use capture::Places;
use llama_cpp_sys_2 as sys;
use trace::template::FilePlace;

use crate::{
    EngineError,
    loading::{self, Loading, Mapping},
    start, take_errors, variant,
};

/// Whether llama.cpp may copy weights into its own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repack {
    /// Weights stay in the file's mapping: what is read is what is in the file.
    Off,
    /// Weights may move into `CPU_REPACK` or `AMX` buffers, which are faster for
    /// some types.
    On,
}

pub struct Model {
    pub(crate) raw: *mut sys::llama_model,
    vocab: *const sys::llama_vocab,
    path: PathBuf,
    mappings: Vec<Mapping>,
    /// The files' own description, by which weights are found in them.
    pub gguf: gguf::Model,
}

impl Model {
    /// Maps the model. It is opened by our own reader first, whose messages say
    /// where a bad file is bad.
    pub fn load(path: &Path, repack: Repack) -> Result<Model, ModelError> {
        Model::load_as(path, repack, Loading::AsFound)
    }

    /// As [`Model::load`]; `loading` says whether the file is read while it is mapped.
    pub fn load_as(path: &Path, repack: Repack, loading: Loading) -> Result<Model, ModelError> {
        Model::load_with(path, loading, |params, _| {
            params.load_mode = sys::LLAMA_LOAD_MODE_MMAP;
            params.use_extra_bufts = repack == Repack::On;
            None
        })
    }

    /// Reads all of it into memory of its own, in whatever order is fastest to compute with.
    pub fn load_into_memory(path: &Path) -> Result<Model, ModelError> {
        Model::load_with(path, Loading::AsFound, |params, _| {
            params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
            params.use_extra_bufts = true;
            None
        })
    }

    /// `set` changes parameters, and may name another file for llama.cpp to read.
    pub(crate) fn load_with(
        path: &Path,
        loading: Loading,
        set: impl FnOnce(&mut sys::llama_model_params, &gguf::Model) -> Option<PathBuf>,
    ) -> Result<Model, ModelError> {
        let gguf = gguf::Model::open(path)?;
        variant::chosen()?;
        start();
        take_errors();
        // SAFETY: takes nothing.
        let mut params = unsafe { sys::llama_model_default_params() };
        let other = set(&mut params, &gguf);
        // llama.cpp wants the first file of a split set.
        let first = gguf.files().first().map(|file| file.path.as_path());
        let first = other.as_deref().or(first).unwrap_or(path);
        let c_path = CString::new(first.as_os_str().as_bytes())
            .map_err(|_| refused(path, "its path has a NUL byte in it".into()))?;
        // SAFETY: a valid string and parameters made by llama.cpp.
        let load = || unsafe { sys::llama_model_load_from_file(c_path.as_ptr(), params) };
        let (raw, mappings) = loading::with(loading, load);
        if raw.is_null() {
            return Err(refused(path, take_errors()));
        }
        // SAFETY: a loaded model.
        let vocab = unsafe { sys::llama_model_get_vocab(raw) };
        Ok(Model {
            raw,
            vocab,
            path: path.to_owned(),
            mappings,
            gguf,
        })
    }

    /// Tells the kernel how the mapped file will be read (`MADV_…`).
    pub fn advise(&self, advice: i32) -> std::io::Result<()> {
        self.mappings.iter().try_for_each(|m| m.advise(advice))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where each tensor lies in the model's files.
    pub fn places(&self) -> Places {
        self.gguf
            .tensors()
            .iter()
            .map(|tensor| {
                let place = FilePlace {
                    file: tensor.file,
                    file_offset: tensor.file_offset,
                };
                (tensor.name.as_bytes().to_vec(), place)
            })
            .collect()
    }

    pub fn vocabulary_size(&self) -> usize {
        // SAFETY: a loaded model's vocabulary.
        unsafe { sys::llama_vocab_n_tokens(self.vocab) }.max(0) as usize
    }

    /// The context that the model was trained with.
    pub fn trained_context(&self) -> usize {
        // SAFETY: a loaded model.
        unsafe { sys::llama_model_n_ctx_train(self.raw) }.max(0) as usize
    }

    /// Whether single tokens can be taken back from its memory, which drafts need. What a
    /// recurrent model remembers is one state.
    pub fn takes_back(&self) -> bool {
        // SAFETY: a loaded model.
        unsafe { !sys::llama_model_is_recurrent(self.raw) && !sys::llama_model_is_hybrid(self.raw) }
    }

    /// Token ids of a text, with the tokens that the model wants at its start.
    pub fn tokenize(&self, text: &str) -> Result<Vec<i32>, EngineError> {
        let length = i32::try_from(text.len()).map_err(|_| EngineError::Tokenize)?;
        let mut tokens = vec![0i32; text.len() + 8];
        // SAFETY: the text and the buffer have the lengths given.
        let count = unsafe {
            sys::llama_tokenize(
                self.vocab,
                text.as_ptr().cast::<c_char>(),
                length,
                tokens.as_mut_ptr(),
                tokens.len() as i32,
                true,
                true,
            )
        };
        tokens.truncate(usize::try_from(count).map_err(|_| EngineError::Tokenize)?);
        Ok(tokens)
    }

    /// Text of a token, as bytes: a token may be a part of a character.
    pub fn token_text(&self, token: i32) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        loop {
            // SAFETY: the buffer has the length given.
            let length = unsafe {
                sys::llama_token_to_piece(
                    self.vocab,
                    token,
                    bytes.as_mut_ptr().cast(),
                    bytes.len() as i32,
                    0,
                    true,
                )
            };
            match usize::try_from(length) {
                Ok(length) => {
                    bytes.truncate(length);
                    return bytes;
                }
                // Negative: the length it would need.
                Err(_) => bytes.resize(length.unsigned_abs() as usize, 0),
            }
        }
    }

    pub fn is_end_of_generation(&self, token: i32) -> bool {
        // SAFETY: a loaded model's vocabulary.
        unsafe { sys::llama_vocab_is_eog(self.vocab, token) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`; contexts borrow the model.
        unsafe { sys::llama_model_free(self.raw) };
    }
}

/// The file is bad, or llama.cpp does not want it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

fn refused(path: &Path, reason: String) -> ModelError {
    EngineError::Model {
        path: path.to_owned(),
        reason,
    }
    .into()
}
