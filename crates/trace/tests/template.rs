//! Definitions survive coding, and garbage is refused without a panic.

use proptest::{collection::vec, option, prelude::*};
use trace::{
    device::{DeviceDef, KernelDef, KernelKind, Launches},
    region::{IndexOrder, Indexed, Region, Strided},
    template::*,
};

fn name() -> impl Strategy<Value = Name> {
    (any::<u32>(), option::of(0..u32::MAX)).prop_map(|(pattern, number)| Name { pattern, number })
}

fn strided() -> impl Strategy<Value = Strided> {
    (any::<u64>(), any::<u64>(), vec(any::<(u64, u64)>(), 0..=4)).prop_map(
        |(offset, run_bytes, dims)| Strided {
            offset,
            run_bytes,
            dims,
        },
    )
}

fn region() -> impl Strategy<Value = Region<u32>> {
    let order = prop_oneof![
        Just(IndexOrder::EachInOrder),
        Just(IndexOrder::DistinctAscending)
    ];
    let indexed = (
        any::<u32>(),
        strided(),
        any::<[u64; 2]>(),
        any::<[u64; 3]>(),
        any::<[u64; 2]>(),
        order,
    )
        .prop_map(
            |(capture, unit, [stride, bound], count, outer_strides, order)| {
                Region::Indexed(Indexed {
                    capture,
                    unit,
                    stride,
                    bound,
                    count,
                    outer_strides,
                    order,
                })
            },
        );
    prop_oneof![strided().prop_map(Region::Fixed), indexed]
}

fn access() -> impl Strategy<Value = AccessDef> {
    let operand =
        option::of(any::<u8>()).prop_map(|i| i.map_or(Operand::Destination, Operand::Source));
    let direction = prop_oneof![Just(Direction::Read), Just(Direction::Write)];
    (any::<u32>(), operand, direction, region()).prop_map(|(tensor, operand, direction, region)| {
        AccessDef {
            tensor,
            operand,
            direction,
            region,
        }
    })
}

fn template() -> impl Strategy<Value = Template> {
    let step = (
        any::<(u16, u8, u32, bool)>(),
        name(),
        option::of(0..u32::MAX),
        vec(access(), 0..4),
    );
    let kind = prop::sample::select(vec![
        CaptureKind::Index,
        CaptureKind::Tokens,
        CaptureKind::Positions,
        CaptureKind::ExpertIds,
        CaptureKind::ExpertWeights,
        CaptureKind::OutputRows,
    ]);
    let number = || option::of(0..u32::MAX);
    let capture = (
        kind,
        number(),
        any::<[u64; 3]>(),
        any::<u8>(),
        number(),
        number(),
    )
        .prop_map(|(kind, step, count, width_bytes, layer, pair)| CaptureDef {
            kind,
            time: step.map_or(CaptureTime::Begin, CaptureTime::Step),
            count,
            width_bytes,
            layer,
            pair,
        });
    let parts = (
        any::<u32>(),
        vec(step, 0..6),
        vec(capture, 0..6),
        option::of(any::<u32>()),
    );
    parts.prop_map(|(nodes, steps, captures, device)| {
        let mut node = 0;
        let steps = steps
            .into_iter()
            .map(
                |((ahead, fused_nodes, op, op_is_known), name, layer, accesses)| {
                    node += u32::from(ahead);
                    Step {
                        node,
                        fused_nodes,
                        op,
                        name,
                        layer,
                        op_is_known,
                        accesses,
                    }
                },
            )
            .collect();
        Template {
            nodes,
            steps,
            captures,
            device,
        }
    })
}

fn device() -> impl Strategy<Value = DeviceDef> {
    any::<(u32, u32, u64)>().prop_map(|(name, description, memory_bytes)| DeviceDef {
        name,
        description,
        memory_bytes,
    })
}

fn launches() -> impl Strategy<Value = Launches> {
    let kind = prop::sample::select(KernelKind::ALL.to_vec());
    let kernel = (
        option::of(0..u32::MAX),
        kind,
        any::<(u32, [u32; 3], [u32; 3])>(),
    );
    let kernel = kernel.prop_map(|(step, kind, (name, grid, block))| KernelDef {
        step,
        kind,
        name,
        grid,
        block,
    });
    (any::<u32>(), vec(kernel, 0..6)).prop_map(|(template, kernels)| Launches { template, kernels })
}

fn definition() -> impl Strategy<Value = Definition> {
    let kind = prop::sample::select(vec![
        TensorKind::Activation,
        TensorKind::Weight,
        TensorKind::KvCache,
        TensorKind::Input,
    ]);
    let place = option::of((0..u32::MAX, any::<u64>()))
        .prop_map(|place| place.map(|(file, file_offset)| FilePlace { file, file_offset }));
    let tensor = (
        name(),
        kind,
        any::<[u32; 2]>(),
        any::<[u64; 4]>(),
        any::<[u64; 2]>(),
        place,
    )
        .prop_map(
            |(name, kind, [ggml_type, buffer_type], ne, [size_bytes, address], place)| {
                Definition::Tensor(TensorDef {
                    name,
                    kind,
                    ggml_type,
                    ne,
                    size_bytes,
                    address,
                    buffer_type,
                    place,
                })
            },
        );
    prop_oneof![
        any::<Vec<u8>>().prop_map(Definition::Text),
        any::<(u32, Vec<u8>)>().prop_map(|(id, text)| Definition::Token { id, text }),
        tensor,
        template().prop_map(Definition::Template),
        device().prop_map(Definition::Device),
        launches().prop_map(Definition::Launches),
    ]
}

proptest! {
    #[test]
    fn definitions_round_trip(definitions in vec(definition(), 0..8)) {
        let bytes = encode_definitions(&definitions);
        prop_assert_eq!(decode_definitions(&bytes).unwrap(), definitions);
    }

    #[test]
    fn cut_definitions_are_refused_or_fewer(definitions in vec(definition(), 1..4), cut in any::<prop::sample::Index>()) {
        let bytes = encode_definitions(&definitions);
        let cut = cut.index(bytes.len());
        if let Ok(fewer) = decode_definitions(&bytes[..cut]) {
            prop_assert!(fewer.len() < definitions.len());
            prop_assert_eq!(&fewer[..], &definitions[..fewer.len()]);
        }
    }

    #[test]
    fn garbage_never_panics(bytes: Vec<u8>, tag in 1u8..8) {
        let _ = decode_definitions(&bytes);
        let mut tagged = vec![tag];
        tagged.extend(bytes);
        let _ = decode_definitions(&tagged);
    }

    #[test]
    fn a_changed_byte_never_panics(definition in definition(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = encode_definitions(&[definition]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode_definitions(&bytes);
    }
}
