//! A record of `tensor_access.bin`, byte by byte.
//!
//! Little-endian, 64 bytes, fields by descending width: every field is aligned
//! without padding, so that C, numpy and `struct` agree on the layout without a
//! word about packing, and a record never straddles a cache line.

/// In fields of 16 bits: not known, or does not apply.
pub const NONE_U16: u16 = u16::MAX;
/// In `file_offset`: these bytes are in no file of the model.
pub const NONE_U64: u64 = u64::MAX;

pub const RECORD_BYTES: usize = 64;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// From the begin of the first evaluation to that of the node: the tick of
    /// the node before it.
    pub timestamp_ns: u64,
    /// Address of the first byte touched, in the process that was traced.
    pub tensor_ptr: u64,
    /// Of the first byte touched.
    pub file_offset: u64,
    /// 64 bits: fused expert tensors exceed 4 GiB.
    pub size_bytes: u64,
    /// The token that alone caused the access, or the first of the batch, counted
    /// through the run.
    pub token_id: u32,
    /// A prompt is computed in batches, so a token is no pass over the weights;
    /// an evaluation is.
    pub eval: u32,
    pub tensor_idx: u32,
    /// 16 bits: ggml has close to a hundred ops already, and fused ones come on top.
    pub operation: u16,
    pub layer_id: u16,
    /// 16 bits: 128 heads are in use, and 255 was taken for none.
    pub attention_head: u16,
    /// 16 bits: models with 256 experts and more exist.
    pub expert_id: u16,
    /// Best rank that a token of the batch gave the expert, from 0.
    pub expert_rank: u16,
    /// Largest router weight that a token of the batch gave it; see [`quantised`].
    pub routing_score: u16,
    /// File of a split model.
    pub file: u16,
    /// Tokens that share the access; 65535 means that many or more.
    pub token_count: u16,
    pub phase: u8,
    pub qkv_type: u8,
    /// 0 read, 1 write.
    pub direction: u8,
}

/// Name, offset and numpy type of each field; what `trace_metadata.json` says.
pub const FIELDS: [(&str, usize, &str); 19] = [
    ("timestamp_ns", 0, "<u8"),
    ("tensor_ptr", 8, "<u8"),
    ("file_offset", 16, "<u8"),
    ("size_bytes", 24, "<u8"),
    ("token_id", 32, "<u4"),
    ("eval", 36, "<u4"),
    ("tensor_idx", 40, "<u4"),
    ("operation", 44, "<u2"),
    ("layer_id", 46, "<u2"),
    ("attention_head", 48, "<u2"),
    ("expert_id", 50, "<u2"),
    ("expert_rank", 52, "<u2"),
    ("routing_score", 54, "<u2"),
    ("file", 56, "<u2"),
    ("token_count", 58, "<u2"),
    ("phase", 60, "u1"),
    ("qkv_type", 61, "u1"),
    ("direction", 62, "u1"),
    ("reserved", 63, "u1"),
];

impl Record {
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        for field in [
            self.timestamp_ns,
            self.tensor_ptr,
            self.file_offset,
            self.size_bytes,
        ] {
            put(&field.to_le_bytes());
        }
        for field in [self.token_id, self.eval, self.tensor_idx] {
            put(&field.to_le_bytes());
        }
        for field in [
            self.operation,
            self.layer_id,
            self.attention_head,
            self.expert_id,
            self.expert_rank,
            self.routing_score,
            self.file,
            self.token_count,
        ] {
            put(&field.to_le_bytes());
        }
        // The last byte is reserved and zero.
        put(&[self.phase, self.qkv_type, self.direction, 0]);
        bytes
    }
}

/// Values of `phase`; the plan's, and one for programs that we only watch.
pub mod phase {
    pub const PROMPT: u8 = 0;
    pub const GENERATE: u8 = 1;
    pub const UNKNOWN: u8 = 2;
    pub const NAMES: [&str; 3] = ["prompt", "generate", "unknown"];
}

/// Values of `qkv_type`, the plan's.
pub mod qkv {
    pub const NONE: u8 = 0;
    pub const QUERY: u8 = 1;
    pub const KEY: u8 = 2;
    pub const VALUE: u8 = 3;
    pub const OUTPUT: u8 = 4;
    pub const NAMES: [&str; 5] = ["none", "query", "key", "value", "output"];

    /// By the role of an attention weight; merged ones have none.
    pub fn of_role(role: &str) -> u8 {
        match role {
            "q" | "q_a" | "q_b" => QUERY,
            "k" | "k_b" => KEY,
            "v" | "v_b" => VALUE,
            "o" | "o_a" | "o_b" => OUTPUT,
            _ => NONE,
        }
    }
}

/// A router weight in 16 bits: 0 to 1 as 0 to 65534, what exceeds 1 as 65534 (some
/// models scale their weights; the table `routing` has them exactly).
pub fn quantised(weight: Option<f32>) -> u16 {
    match weight {
        Some(weight) if !weight.is_nan() => {
            (f64::from(weight.clamp(0.0, 1.0)) * f64::from(NONE_U16 - 1)).round() as u16
        }
        _ => NONE_U16,
    }
}

/// Numbers of ops: the plan's where it has one, from 100 on for others, in the
/// order of their first use.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    others: Vec<String>,
}

/// The plan's enum, as ggml spells it today. Ops that move no bytes (RESHAPE,
/// VIEW, PERMUTE) never occur in a trace.
const PLANNED: [(&str, u16); 11] = [
    ("MUL_MAT", 1),
    ("ADD", 2),
    ("RMS_NORM", 3),
    ("ROPE", 4),
    ("MUL", 5),
    ("CPY", 6),
    ("RESHAPE", 7),
    ("VIEW", 8),
    ("PERMUTE", 9),
    ("CONT", 10),
    ("FLASH_ATTN_EXT", 11),
];
const FIRST_OTHER: u16 = 100;

impl Operations {
    /// `None` when 16 bits do not suffice.
    pub fn number(&mut self, op: &str) -> Option<u16> {
        if let Some((_, number)) = PLANNED.iter().find(|(name, _)| *name == op) {
            return Some(*number);
        }
        let index = self
            .others
            .iter()
            .position(|name| name == op)
            .unwrap_or_else(|| {
                self.others.push(op.to_owned());
                self.others.len() - 1
            });
        u16::try_from(index).ok()?.checked_add(FIRST_OTHER)
    }

    /// Number and name of every op that a record can have.
    pub fn all(&self) -> impl Iterator<Item = (u16, &str)> {
        let planned = PLANNED.iter().map(|&(name, number)| (number, name));
        let others = (FIRST_OTHER..).zip(self.others.iter().map(String::as_str));
        planned.chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_fill_the_record_without_a_gap() {
        let mut end = 0;
        for (name, offset, ty) in FIELDS {
            let width: usize = ty
                .trim_start_matches("<u")
                .trim_start_matches('u')
                .parse()
                .unwrap();
            assert_eq!(offset, end, "{name}");
            assert_eq!(offset % width, 0, "{name} is aligned");
            end += width;
        }
        assert_eq!(end, RECORD_BYTES);
    }

    #[test]
    fn every_field_lies_where_the_table_says() {
        let record = Record {
            timestamp_ns: 0x0101_0101_0101_0101,
            tensor_ptr: 0x0202_0202_0202_0202,
            file_offset: 0x0303_0303_0303_0303,
            size_bytes: 0x0404_0404_0404_0404,
            token_id: 0x0505_0505,
            eval: 0x0606_0606,
            tensor_idx: 0x0707_0707,
            operation: 0x0808,
            layer_id: 0x0909,
            attention_head: 0x0a0a,
            expert_id: 0x0b0b,
            expert_rank: 0x0c0c,
            routing_score: 0x0d0d,
            file: 0x0e0e,
            token_count: 0x0f0f,
            phase: 0x10,
            qkv_type: 0x11,
            direction: 0x12,
        };
        let bytes = record.to_bytes();
        let starts: Vec<u8> = FIELDS.iter().map(|&(_, offset, _)| bytes[offset]).collect();
        assert_eq!(starts, (1..=18).chain([0]).collect::<Vec<u8>>());
        let last_of_each = FIELDS
            .iter()
            .skip(1)
            .map(|&(_, offset, _)| bytes[offset - 1]);
        assert_eq!(
            last_of_each.collect::<Vec<u8>>(),
            (1..=18).collect::<Vec<u8>>()
        );
    }

    #[test]
    fn weights_keep_their_order() {
        let check = |weight, expect| assert_eq!(quantised(weight), expect, "{weight:?}");
        check(None, NONE_U16);
        check(Some(f32::NAN), NONE_U16);
        check(Some(0.0), 0);
        check(Some(-0.5), 0);
        check(Some(0.5), 32767);
        check(Some(1.0), 65534);
        check(Some(2.5), 65534);
    }

    #[test]
    fn ops_keep_their_numbers() {
        let mut operations = Operations::default();
        let ops = ["MUL_MAT", "GLU", "GET_ROWS", "GLU", "FLASH_ATTN_EXT"];
        let numbers = ops.map(|op| operations.number(op).unwrap());
        assert_eq!(numbers, [1, 100, 101, 100, 11]);
        for (number, op) in Operations::all(&operations.clone()) {
            assert_eq!(operations.number(op), Some(number));
        }
    }
}
