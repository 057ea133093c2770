//! Descriptions that estimates are made of: a `config.json`, and a table of machines.

use estimate::{
    Efficiency, Machines, NumberType, Shape, batch, kv,
    roofline::{self, Pass, Types},
};

/// A configuration is refused, or all that is asked of it ends in an answer or an error.
pub fn config(data: &[u8]) {
    let Ok(shape) = Shape::from_config_json(&String::from_utf8_lossy(data)) else {
        return;
    };
    let f16 = NumberType::from_name("f16").expect("a type that everybody has");
    let types = Types::of(f16, f16);
    let machines = Machines::built_in().expect("the table that is built in");
    let machine = &machines.machines[0];
    let _ = kv::at_context(&shape, f16, 4096);
    for pass in [Pass::prompt(1, 512), Pass::decode(8, 4096)] {
        if let Ok(time) = roofline::time(&shape, pass, types, machine, Efficiency::default()) {
            assert!(time.seconds.likely.is_finite());
            assert!(time.seconds.best <= time.seconds.worst);
        }
    }
    let _ = batch::advise(&batch::Question::new(&shape, types, machine, 4096));
}

/// A table of machines is refused, or has figures that can be divided by.
pub fn machines(data: &[u8]) {
    let Ok(table) = Machines::from_json(&String::from_utf8_lossy(data)) else {
        return;
    };
    for machine in &table.machines {
        assert!(table.find(&machine.name).is_ok());
        for ridge in machine.ridges() {
            assert!(ridge.flop_per_byte.is_finite() && ridge.flop_per_byte > 0.0);
        }
    }
}
