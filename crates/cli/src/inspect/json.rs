//! `inspect --json`. Tensors are streamed, because with expert slices and heads
//! there can be hundreds of thousands of entries.

use std::io::{self, Write};

use gguf::heads::{HeadLayout, HeadRange};
use gguf::metadata::{Array, Metadata, Value};
use gguf::{HeadRows, Model, Owner, Summary, Tensor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::json;

pub fn write_model(
    model: &Model,
    summary: &Summary,
    heads: HeadRows,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let document = Document {
        files: Files(model),
        summary,
        metadata: Entries(model.metadata()),
        tensors: Tensors { model, heads },
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)?;
    Ok(())
}

pub fn write_owner(
    model: &Model,
    file: usize,
    offset: u64,
    owner: &Owner<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let path = model.files()[file].path.display().to_string();
    let mut answer = json!({ "file": path, "file_offset": offset });
    let details = match owner {
        Owner::Preamble => json!({ "owner": "header" }),
        Owner::Metadata { key } => json!({ "owner": "metadata", "key": key }),
        Owner::TensorInfo { tensor } => {
            json!({ "owner": "tensor_info", "tensor_name": tensor.name })
        }
        Owner::Padding { after, before } => json!({
            "owner": "padding",
            "after": after.map(|t| &t.name),
            "before": before.map(|t| &t.name),
        }),
        Owner::Tensor(byte) => json!({
            "owner": "tensor",
            "tensor_name": byte.tensor.name,
            "tensor_file_offset": byte.tensor.file_offset,
            "offset_in_tensor": byte.offset_in_tensor,
            "size_bytes": byte.tensor.size_bytes,
            "type": byte.tensor.ty.name(),
            "layer_id": byte.tensor.meaning.layer,
            "component_type": byte.tensor.meaning.component.name(),
            "role": byte.tensor.meaning.role,
            "kind": byte.tensor.meaning.kind.name(),
            "expert_id": byte.expert,
            "head_of": byte.heads.map(|h| h.of),
            "head_id": byte.heads.map(|h| h.first),
            "last_head_id": byte.heads.map(|h| h.last),
            "row": byte.row,
            "element": byte.element,
            "block_elements": byte.block_elements,
        }),
    };
    if let (Some(answer), serde_json::Value::Object(details)) = (answer.as_object_mut(), details) {
        answer.extend(details);
    }
    serde_json::to_writer_pretty(&mut *out, &answer).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

#[derive(Serialize)]
struct Document<'a> {
    files: Files<'a>,
    summary: &'a Summary,
    metadata: Entries<'a>,
    tensors: Tensors<'a>,
}

struct Files<'a>(&'a Model);

impl Serialize for Files<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.files().iter().map(|file| {
            json!({
                "path": file.path.display().to_string(),
                "size_bytes": file.len_bytes,
                "version": file.version,
                "alignment_bytes": file.alignment_bytes,
                "header_bytes": file.infos_end,
                "data_offset": file.data_offset,
            })
        }))
    }
}

struct Entries<'a>(&'a Metadata);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.0.entries();
        serializer.collect_map(entries.iter().map(|e| (&e.key, Shown(&e.value))))
    }
}

struct Shown<'a>(&'a Value);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::F32(v) => serializer.serialize_f32(*v),
            Value::F64(v) => serializer.serialize_f64(*v),
            Value::Bool(v) => serializer.serialize_bool(*v),
            Value::I8(v) => serializer.serialize_i8(*v),
            Value::I16(v) => serializer.serialize_i16(*v),
            Value::I32(v) => serializer.serialize_i32(*v),
            Value::I64(v) => serializer.serialize_i64(*v),
            Value::U8(v) => serializer.serialize_u8(*v),
            Value::U16(v) => serializer.serialize_u16(*v),
            Value::U32(v) => serializer.serialize_u32(*v),
            Value::U64(v) => serializer.serialize_u64(*v),
            Value::String(text) => serializer.serialize_str(text),
            Value::LongString {
                file_offset,
                size_bytes,
            } => left_in_file(serializer, "string", None, *file_offset, *size_bytes),
            Value::Array(Array {
                elements: Some(elements),
                ..
            }) => serializer.collect_seq(elements.iter().map(Shown)),
            Value::Array(array) => left_in_file(
                serializer,
                array.element.name(),
                Some(array.count),
                array.file_offset,
                array.size_bytes,
            ),
        }
    }
}

/// A value that was too long to keep: where to find it.
fn left_in_file<S: Serializer>(
    serializer: S,
    ty: &str,
    count: Option<u64>,
    file_offset: u64,
    size_bytes: u64,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("type", ty)?;
    if let Some(count) = count {
        map.serialize_entry("count", &count)?;
    }
    map.serialize_entry("file_offset", &file_offset)?;
    map.serialize_entry("size_bytes", &size_bytes)?;
    map.end()
}

struct Tensors<'a> {
    model: &'a Model,
    heads: HeadRows,
}

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensors = self.model.tensors();
        let mut sequence = serializer.serialize_seq(Some(tensors.len()))?;
        for tensor in tensors {
            let layout = match self.heads {
                HeadRows::With => HeadLayout::of(tensor, self.model.hyper()),
                HeadRows::Without => None,
            };
            sequence.serialize_element(&OneTensor {
                model: self.model,
                tensor,
                layout,
            })?;
        }
        sequence.end()
    }
}

struct OneTensor<'a> {
    model: &'a Model,
    tensor: &'a Tensor,
    layout: Option<HeadLayout>,
}

impl Serialize for OneTensor<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensor = self.tensor;
        let meaning = &tensor.meaning;
        let file = &self.model.files()[tensor.file as usize];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("tensor_name", &tensor.name)?;
        map.serialize_entry("file", &file.path.display().to_string())?;
        map.serialize_entry("file_offset", &tensor.file_offset)?;
        map.serialize_entry("size_bytes", &tensor.size_bytes)?;
        map.serialize_entry("type", tensor.ty.name())?;
        map.serialize_entry("shape", tensor.shape())?;
        map.serialize_entry("layer_id", &meaning.layer)?;
        map.serialize_entry("component_type", meaning.component.name())?;
        map.serialize_entry("role", &meaning.role)?;
        map.serialize_entry("kind", meaning.kind.name())?;
        map.serialize_entry("expert_id", &tensor.single_expert())?;
        if tensor.expert_slices().is_some() {
            map.serialize_entry("experts", &Slices(tensor))?;
        }
        if let Some(layout) = &self.layout {
            map.serialize_entry("heads", &Heads(tensor, layout))?;
        }
        map.end()
    }
}

struct Slices<'a>(&'a Tensor);

impl Serialize for Slices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Slice {
            expert_id: u64,
            file_offset: u64,
            size_bytes: u64,
        }
        serializer.collect_seq(self.0.rows().map(|row| Slice {
            expert_id: row.expert.unwrap_or(0),
            file_offset: row.file_offset,
            size_bytes: row.size_bytes,
        }))
    }
}

struct Heads<'a>(&'a Tensor, &'a HeadLayout);

impl Serialize for Heads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Head {
            head_of: &'static str,
            head_id: u64,
            file_offset: u64,
            run_bytes: u64,
            stride_bytes: u64,
            run_count: u64,
            boundary: &'static str,
        }
        let head = |range: HeadRange| Head {
            head_of: range.of,
            head_id: range.head,
            file_offset: range.file_offset,
            run_bytes: range.run_bytes,
            stride_bytes: range.stride_bytes,
            run_count: range.run_count,
            boundary: range.boundary.name(),
        };
        serializer.collect_seq(self.1.ranges(self.0).map(head))
    }
}
