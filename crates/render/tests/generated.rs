//! The page's colours are those of `render::palette`, and its numbers read as in print:
//! `TENSORSCOPE_BLESS=1 cargo test -p render --test generated` writes what the page takes from
//! here into `web/`.

#[path = "../../index/tests/generated/mod.rs"]
mod generated;

use std::collections::BTreeMap;

use render::palette::{
    Category, MIN_SHARE, OPS, Ramp, Rgb, SERIES, Scheme, TIME_PARTS, WAYS, hex, surface, surfaces,
};
use render::plot::Unit;
use serde_json::{Value, json};

/// Of a map, as the page gets it.
const STEPS: usize = 33;

fn in_both(of: impl Fn(Scheme) -> Value) -> Value {
    json!({ "light": of(Scheme::Light), "dark": of(Scheme::Dark) })
}

#[test]
fn the_page_has_every_colour() {
    let mut text = String::from(
        "// Written by crates/render/tests/generated.rs; change crates/render/src/palette.rs.\n",
    );
    let mut constant = |name: &str, ty: &str, value: Value| {
        text += &format!(
            "\nexport const {name}{ty} = {};\n",
            serde_json::to_string_pretty(&value).unwrap()
        );
    };
    constant(
        "SURFACES",
        "",
        in_both(|scheme| {
            let of = |name| (name, hex(surface(name, scheme)));
            json!(surfaces().map(of).collect::<BTreeMap<_, _>>())
        }),
    );
    let by_category = |value: &dyn Fn(Category) -> Value| {
        let all = Category::all().map(|category| (category.name(), value(category)));
        json!(all.collect::<BTreeMap<_, _>>())
    };
    constant(
        "CATEGORIES",
        ": Record<'light' | 'dark', Record<string, string>>",
        in_both(|scheme| by_category(&|category| json!(hex(category.colour(scheme))))),
    );
    constant(
        "DASHES",
        ": Record<string, number[]>",
        by_category(&|category| {
            let parts = category.dash().split_whitespace();
            json!(
                parts
                    .map(|part| part.parse().unwrap())
                    .collect::<Vec<u32>>()
            )
        }),
    );
    constant("SERIES", ": string[]", json!(SERIES));
    for (name, of) in [("OPS", OPS), ("WAYS", WAYS), ("TIME_PARTS", TIME_PARTS)] {
        let of: BTreeMap<&str, &str> = of.iter().copied().collect();
        constant(name, ": Record<string, string>", json!(of));
    }
    for (name, ramp) in [
        ("COUNTS", Ramp::Counts),
        ("TIME", Ramp::Time),
        ("DIFFERENCE", Ramp::Difference),
    ] {
        let step = |scheme| move |step| hex(ramp.colour(step as f64 / (STEPS - 1) as f64, scheme));
        let steps = |scheme| json!((0..STEPS).map(step(scheme)).collect::<Vec<String>>());
        constant(name, "", in_both(steps));
    }
    constant("MIN_SHARE", "", json!(MIN_SHARE));
    generated::check("src/generated/palette.ts", &text);
}

#[test]
fn the_page_has_every_surface_as_a_variable() {
    let rule = |selector: &str, scheme| {
        let variable = |name| format!("  --{name}: {};\n", hex(surface(name, scheme)));
        let variables: String = surfaces().map(variable).collect();
        format!("{selector} {{\n{variables}}}\n")
    };
    let text = format!(
        "/* Written by crates/render/tests/generated.rs; change crates/render/src/palette.rs. */\n{}{}@media (prefers-color-scheme: light) {{\n{}}}\n",
        rule(":root", Scheme::Dark),
        rule(":root[data-theme='light']", Scheme::Light),
        rule(":root:not([data-theme])", Scheme::Light),
    );
    generated::check("src/generated/palette.css", &text);
}

/// A test of the page holds its own texts against these.
#[test]
fn the_page_writes_numbers_as_print_does() {
    let of = |name: &str, unit: Unit, values: &[f64]| -> Vec<String> {
        let row = |value: &f64| json!([name, value, unit.amount(*value)]).to_string();
        values.iter().map(row).collect()
    };
    let kib = |n: f64| n * 1024.0;
    let rows = [
        of(
            "bytes",
            Unit::Bytes,
            &[
                0.0,
                1.0,
                1023.0,
                1024.0,
                1536.0,
                kib(9.999),
                kib(99.99),
                kib(1000.0),
                7.78e6,
                5e12,
            ],
        ),
        of(
            "nanos",
            Unit::Nanos,
            &[0.0, 1.0, 999.0, 1000.0, 1234.0, 1.657e9, 7.2e12],
        ),
        of(
            "share",
            Unit::Share,
            &[0.0, 0.000123, 0.005, 0.0999, 0.1, 0.636, 0.999, 1.0],
        ),
    ];
    let text = format!("[\n  {}\n]\n", rows.concat().join(",\n  "));
    generated::check("test/amounts.json", &text);
}

#[test]
fn colours_are_far_enough_apart_to_be_told_apart() {
    let distance = |a: Rgb, b: Rgb| -> i32 {
        (0..3)
            .map(|c| (i32::from(a[c]) - i32::from(b[c])).abs())
            .sum()
    };
    for scheme in Scheme::ALL {
        let series: Vec<Rgb> = SERIES
            .iter()
            .map(|name| Category::of(name).colour(scheme))
            .collect();
        for (at, a) in series.iter().enumerate() {
            for b in &series[..at] {
                assert!(distance(*a, *b) > 60, "{} and {}", hex(*a), hex(*b));
            }
        }
    }
}
