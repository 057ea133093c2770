//! Builds GGUF bytes for tests, right or wrong, independently of the writer.

use gguf::GgmlType;

/// A GGUF file in the making. Every field can be set to something wrong.
#[derive(Clone, Debug)]
pub struct Builder {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub entry_count: Option<u64>,
    pub alignment: u64,
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    pub tensors: Vec<TensorSpec>,
}

#[derive(Clone, Debug)]
pub struct TensorSpec {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
    pub size: u64,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl Builder {
    /// An entry whose type and value are given as bytes.
    pub fn raw(mut self, key: &str, ty: u32, value: &[u8]) -> Builder {
        let mut bytes = ty.to_le_bytes().to_vec();
        bytes.extend(value);
        self.entries.push((key.as_bytes().to_vec(), bytes));
        self
    }

    pub fn u16(self, key: &str, value: u16) -> Builder {
        self.raw(key, 2, &value.to_le_bytes())
    }

    pub fn u32(self, key: &str, value: u32) -> Builder {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn i32(self, key: &str, value: i32) -> Builder {
        self.raw(key, 5, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Builder {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn str(self, key: &str, value: &str) -> Builder {
        self.raw(key, 8, &string(value.as_bytes()))
    }

    pub fn u32s(self, key: &str, values: &[u32]) -> Builder {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.array(key, 4, values.len() as u64, &bytes)
    }

    pub fn bools(self, key: &str, values: &[u8]) -> Builder {
        self.array(key, 7, values.len() as u64, values)
    }

    pub fn strs(self, key: &str, values: &[String]) -> Builder {
        let bytes: Vec<u8> = values.iter().flat_map(|v| string(v.as_bytes())).collect();
        self.array(key, 8, values.len() as u64, &bytes)
    }

    pub fn array(self, key: &str, element: u32, count: u64, bytes: &[u8]) -> Builder {
        let mut value = element.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.extend(bytes);
        self.raw(key, 9, &value)
    }

    /// A tensor behind the last one.
    pub fn tensor(mut self, name: &str, ty: GgmlType, dims: &[u64]) -> Builder {
        let rows: u64 = dims.iter().skip(1).product();
        let size = ty.row_bytes(dims.first().copied().unwrap_or(1)).unwrap() * rows;
        let offset = self
            .tensors
            .last()
            .map_or(0, |t| (t.offset + t.size).next_multiple_of(self.alignment));
        self.tensors.push(TensorSpec {
            name: name.as_bytes().to_vec(),
            dims: dims.to_vec(),
            ty: ty.as_u32(),
            offset,
            size,
        });
        self
    }

    /// The header without the padding behind it.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let tensors = self.tensor_count.unwrap_or(self.tensors.len() as u64);
        out.extend(tensors.to_le_bytes());
        let entries = self.entry_count.unwrap_or(self.entries.len() as u64);
        out.extend(entries.to_le_bytes());
        for (key, value) in &self.entries {
            out.extend(string(key));
            out.extend(value);
        }
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    /// First byte of the data section.
    pub fn data_offset(&self) -> u64 {
        (self.header().len() as u64).next_multiple_of(self.alignment)
    }

    /// Bytes of the whole file.
    pub fn len_bytes(&self) -> u64 {
        let end = self.tensors.iter().map(|t| t.offset + t.size).max();
        end.map_or(self.header().len() as u64, |end| self.data_offset() + end)
    }

    /// The whole file, with zeros as data.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(self.len_bytes() as usize, 0);
        out
    }
}

/// A string as GGUF writes it: its length, then its bytes.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

/// A small dense llama: 2 layers, 4 heads on 2, head length 32, tied or not.
pub fn dense(ty: GgmlType) -> Builder {
    let mut b = Builder::default()
        .str("general.architecture", "llama")
        .str("general.name", "dense test")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 256)
        .u32("llama.embedding_length", 256)
        .u32("llama.feed_forward_length", 512)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .str("tokenizer.ggml.model", "gpt2")
        .strs(
            "tokenizer.ggml.tokens",
            &(0..100).map(|i| format!("t{i}")).collect::<Vec<_>>(),
        )
        .tensor("token_embd.weight", ty, &[256, 100]);
    for layer in 0..2 {
        let name = |base: &str| format!("blk.{layer}.{base}");
        b = b
            .tensor(&name("attn_norm.weight"), GgmlType::F32, &[256])
            .tensor(&name("attn_q.weight"), ty, &[256, 256])
            .tensor(&name("attn_q.bias"), GgmlType::F32, &[256])
            .tensor(&name("attn_k.weight"), ty, &[256, 128])
            .tensor(&name("attn_v.weight"), ty, &[256, 128])
            .tensor(&name("attn_output.weight"), ty, &[256, 256])
            .tensor(&name("ffn_norm.weight"), GgmlType::F32, &[256])
            .tensor(&name("ffn_gate.weight"), ty, &[256, 512])
            .tensor(&name("ffn_up.weight"), ty, &[256, 512])
            .tensor(&name("ffn_down.weight"), ty, &[512, 256]);
    }
    b.tensor("output_norm.weight", GgmlType::F32, &[256])
}

/// A small gpt-oss: experts with biases, a window in every second layer, sinks.
pub fn moe() -> Builder {
    let mut b = Builder::default()
        .str("general.architecture", "gpt-oss")
        .u32("gpt-oss.block_count", 2)
        .u32("gpt-oss.context_length", 1024)
        .u32("gpt-oss.embedding_length", 64)
        .u32("gpt-oss.feed_forward_length", 32)
        .u32("gpt-oss.expert_feed_forward_length", 32)
        .u32("gpt-oss.attention.head_count", 4)
        .u32s("gpt-oss.attention.head_count_kv", &[2, 1])
        .u32("gpt-oss.attention.key_length", 16)
        .u32("gpt-oss.attention.value_length", 16)
        .u32("gpt-oss.attention.sliding_window", 128)
        .u32("gpt-oss.expert_count", 4)
        .u32("gpt-oss.expert_used_count", 2)
        .tensor("token_embd.weight", GgmlType::Q8_0, &[64, 50]);
    for (layer, kv_heads) in [(0, 2), (1, 1)] {
        let name = |base: &str| format!("blk.{layer}.{base}");
        b = b
            .tensor(&name("attn_q.weight"), GgmlType::Q8_0, &[64, 64])
            .tensor(&name("attn_k.weight"), GgmlType::Q8_0, &[64, 16 * kv_heads])
            .tensor(&name("attn_v.weight"), GgmlType::Q8_0, &[64, 16 * kv_heads])
            .tensor(&name("attn_output.weight"), GgmlType::Q8_0, &[64, 64])
            .tensor(&name("attn_sinks.weight"), GgmlType::F32, &[4])
            .tensor(&name("ffn_gate_inp.weight"), GgmlType::F32, &[64, 4])
            .tensor(&name("ffn_gate_exps.weight"), GgmlType::MXFP4, &[64, 32, 4])
            .tensor(&name("ffn_up_exps.weight"), GgmlType::MXFP4, &[64, 32, 4])
            .tensor(&name("ffn_down_exps.weight"), GgmlType::MXFP4, &[32, 64, 4])
            .tensor(&name("ffn_gate_exps.bias"), GgmlType::F32, &[32, 4])
            .tensor(&name("ffn_down_exps.bias"), GgmlType::F32, &[64, 4]);
    }
    b.tensor("output.weight", GgmlType::Q8_0, &[64, 50])
}

/// Latent attention, a merged QKV, experts from before merging, a recurrent
/// layer: names and shapes that the other two lack.
pub fn mixed() -> Builder {
    Builder::default()
        .str("general.architecture", "deepseek2")
        .u32("deepseek2.block_count", 4)
        .u32("deepseek2.nextn_predict_layers", 1)
        .u32("deepseek2.embedding_length", 64)
        .u32("deepseek2.attention.head_count", 2)
        .u32("deepseek2.attention.head_count_kv", 1)
        .u32("deepseek2.attention.key_length", 48)
        .u32("deepseek2.attention.value_length", 32)
        .u32("deepseek2.attention.key_length_mla", 32)
        .u32("deepseek2.attention.value_length_mla", 16)
        .u32("deepseek2.attention.kv_lora_rank", 32)
        .u32("deepseek2.expert_count", 2)
        .u32("deepseek2.expert_used_count", 1)
        .bools("deepseek2.attention.sliding_window_pattern", &[0, 1, 1, 0])
        .f32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6)
        .tensor("token_embd.weight", GgmlType::F16, &[64, 33])
        .tensor("blk.0.attn_q_a.weight", GgmlType::Q4_0, &[64, 32])
        .tensor("blk.0.attn_q_b.weight", GgmlType::Q4_0, &[32, 64])
        .tensor("blk.0.attn_kv_a_mqa.weight", GgmlType::Q4_0, &[64, 48])
        .tensor("blk.0.attn_k_b.weight", GgmlType::Q8_0, &[32, 16, 2])
        .tensor("blk.0.attn_v_b.weight", GgmlType::Q8_0, &[32, 16, 2])
        .tensor("blk.0.attn_output.weight", GgmlType::Q4_0, &[32, 64])
        .tensor("blk.1.attn_qkv.weight", GgmlType::Q8_0, &[64, 176])
        .tensor("blk.1.attn_qkv.bias", GgmlType::F32, &[176])
        .tensor("blk.1.ffn_gate.0.weight", GgmlType::Q8_0, &[64, 32])
        .tensor("blk.1.ffn_gate.1.weight", GgmlType::Q8_0, &[64, 32])
        .tensor("blk.1.exp_probs_b.bias", GgmlType::F32, &[2])
        .tensor("blk.2.attn_qkv.weight", GgmlType::Q8_0, &[64, 100])
        .tensor("blk.2.ssm_a", GgmlType::F32, &[8])
        .tensor("blk.3.nextn.eh_proj.weight", GgmlType::Q8_0, &[64, 64])
        .tensor("output.weight", GgmlType::BF16, &[64, 33])
}
