//! The loops whose accesses are looked at. Each is written once, over [`Memory`]: with
//! [`Recorder`] it says which cache lines it uses, with [`Real`] it uses them.

/// Numbers by their place. A place is counted in numbers of four bytes, from the beginning of
/// everything.
pub trait Memory {
    fn read(&mut self, place: usize) -> f32;
    fn write(&mut self, place: usize, value: f32);
}

/// Bytes of a number.
const NUMBER: usize = 4;

/// Writes down the cache line of each access.
#[derive(Debug, Default)]
pub struct Recorder {
    pub lines: Vec<u32>,
}

/// Bytes of the lines that are written down.
pub const LINE_BYTES: usize = 64;

impl Memory for Recorder {
    #[inline]
    fn read(&mut self, place: usize) -> f32 {
        self.lines.push((place * NUMBER / LINE_BYTES) as u32);
        0.0
    }

    #[inline]
    fn write(&mut self, place: usize, _: f32) {
        self.lines.push((place * NUMBER / LINE_BYTES) as u32);
    }
}

/// Memory of this process, which begins where every cache has its first set.
#[derive(Debug)]
pub struct Real {
    begin: *mut f32,
    mapped: *mut libc::c_void,
    bytes: usize,
}

/// All sets of the caches of today's machines fit between two such addresses.
const ALIGNMENT: usize = 4 << 20;

impl Real {
    /// Nothing of it is touched: the first use of a line is the loop's.
    pub fn new(numbers: usize) -> anyhow::Result<Real> {
        let bytes = numbers * NUMBER + ALIGNMENT;
        // SAFETY: a new mapping, anywhere.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let skipped = mapped.align_offset(ALIGNMENT);
        Ok(Real {
            begin: mapped.wrapping_byte_add(skipped).cast(),
            mapped,
            bytes,
        })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // SAFETY: mapped above, once.
        unsafe { libc::munmap(self.mapped, self.bytes) };
    }
}

impl Memory for Real {
    #[inline]
    fn read(&mut self, place: usize) -> f32 {
        // SAFETY: loops stay below the `numbers` that they say they need.
        unsafe { self.begin.add(place).read_volatile() }
    }

    #[inline]
    fn write(&mut self, place: usize, value: f32) {
        // SAFETY: as above.
        unsafe { self.begin.add(place).write_volatile(value) };
    }
}

/// A loop to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// A product of square matrices in this order of its loops.
    Order([Axis; 3]),
    /// The order i, k, j inside of blocks.
    Blocked,
    /// Scores of attention for one new token, over keys that lie like this.
    Decode(Layout),
    /// Nothing: what a process does besides.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    I,
    J,
    K,
}

/// How the keys of a sequence lie, the slowest index first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[token][head][dim]`.
    Rows,
    /// `[head][dim][token]`: a token's key is a column.
    Columns,
    /// The same with a cache line more for each column, so that they do not begin in the same
    /// set.
    Padded,
    /// `[head][16 tokens][dim][token of 16]`: columns of one cache line.
    Blocks,
}

/// How large the loops are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows and columns of the matrices.
    pub matrix: usize,
    /// Sequences that are decoded together.
    pub batch: usize,
    /// Tokens of each.
    pub context: usize,
}

/// Heads that have keys; queries that share each of them; numbers of a key.
const HEADS: usize = 2;
const GROUP: usize = 4;
const DIM: usize = 64;

/// Tokens that one cache line holds in [`Layout::Blocks`].
const IN_LINE: usize = LINE_BYTES / NUMBER;

/// Rows and columns of a block of [`Loop::Blocked`]: three of them fit the first level.
const BLOCK: usize = 48;

impl Layout {
    /// Numbers from one sequence's keys to the next one's.
    fn sequence(self, context: usize) -> usize {
        match self {
            Layout::Rows | Layout::Columns => context * HEADS * DIM,
            Layout::Padded => HEADS * DIM * (context + IN_LINE),
            Layout::Blocks => context.next_multiple_of(IN_LINE) * HEADS * DIM,
        }
    }

    fn place(self, context: usize, token: usize, head: usize, dim: usize) -> usize {
        match self {
            Layout::Rows => (token * HEADS + head) * DIM + dim,
            Layout::Columns => (head * DIM + dim) * context + token,
            Layout::Padded => (head * DIM + dim) * (context + IN_LINE) + token,
            Layout::Blocks => {
                let blocks = context.div_ceil(IN_LINE);
                ((head * blocks + token / IN_LINE) * DIM + dim) * IN_LINE + token % IN_LINE
            }
        }
    }
}

impl Loop {
    /// Numbers of all its arrays together.
    pub fn numbers(self, size: Size) -> usize {
        match self {
            Loop::Order(_) | Loop::Blocked => 3 * size.matrix * size.matrix,
            Loop::Decode(layout) => {
                let queries = HEADS * GROUP;
                let scores = queries * size.batch * size.context;
                size.batch * (layout.sequence(size.context) + queries * DIM) + scores
            }
            Loop::Idle => 0,
        }
    }

    pub fn run(self, size: Size, memory: &mut impl Memory) {
        let n = size.matrix;
        match self {
            Loop::Order(order) => product(memory, n, order, [(0, n); 3]),
            Loop::Blocked => blocked(memory, n),
            Loop::Decode(layout) => decode(memory, size, layout),
            Loop::Idle => {}
        }
    }
}

/// `ranges` are those of i, j and k. What the inner loop does not change stays in a register;
/// sums are added to C.
fn product(memory: &mut impl Memory, n: usize, order: [Axis; 3], ranges: [(usize, usize); 3]) {
    let (a, b, c) = (0, n * n, 2 * n * n);
    let range = |axis: Axis| {
        let (begin, end) = ranges[axis as usize];
        begin..end
    };
    let mut at = [0; 3];
    for outer in range(order[0]) {
        at[order[0] as usize] = outer;
        for middle in range(order[1]) {
            at[order[1] as usize] = middle;
            let [i, j, k] = at;
            match order[2] {
                Axis::K => {
                    let mut sum = memory.read(c + i * n + j);
                    for k in range(Axis::K) {
                        sum += memory.read(a + i * n + k) * memory.read(b + k * n + j);
                    }
                    memory.write(c + i * n + j, sum);
                }
                Axis::J => {
                    let held = memory.read(a + i * n + k);
                    for j in range(Axis::J) {
                        let term = held * memory.read(b + k * n + j);
                        let sum = memory.read(c + i * n + j) + term;
                        memory.write(c + i * n + j, sum);
                    }
                }
                Axis::I => {
                    let held = memory.read(b + k * n + j);
                    for i in range(Axis::I) {
                        let term = held * memory.read(a + i * n + k);
                        let sum = memory.read(c + i * n + j) + term;
                        memory.write(c + i * n + j, sum);
                    }
                }
            }
        }
    }
}

fn blocked(memory: &mut impl Memory, n: usize) {
    let end = |begin: usize| n.min(begin + BLOCK);
    for j in (0..n).step_by(BLOCK) {
        for k in (0..n).step_by(BLOCK) {
            for i in (0..n).step_by(BLOCK) {
                let ranges = [(i, end(i)), (j, end(j)), (k, end(k))];
                product(memory, n, [Axis::I, Axis::K, Axis::J], ranges);
            }
        }
    }
}

/// One query head over all sequences, then the next one: queries that share a head's keys
/// find them again if all sequences' keys of that head stay in the cache.
fn decode(memory: &mut impl Memory, size: Size, layout: Layout) {
    let Size { batch, context, .. } = size;
    let sequence = layout.sequence(context);
    let queries = batch * sequence;
    let scores = queries + batch * HEADS * GROUP * DIM;
    for query in 0..HEADS * GROUP {
        let head = query / GROUP;
        for s in 0..batch {
            let number = s * HEADS * GROUP + query;
            for token in 0..context {
                let mut score = 0.0;
                for dim in 0..DIM {
                    let key = s * sequence + layout.place(context, token, head, dim);
                    score += memory.read(queries + number * DIM + dim) * memory.read(key);
                }
                memory.write(scores + number * context + token, score);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        matrix: 50,
        batch: 2,
        context: 20,
    };

    /// Which places are used, and that all are inside.
    struct Seen(Vec<u32>);

    impl Memory for Seen {
        fn read(&mut self, place: usize) -> f32 {
            self.0[place] += 1;
            0.0
        }

        fn write(&mut self, place: usize, _: f32) {
            self.0[place] += 1;
        }
    }

    #[test]
    fn all_of_every_array_is_used_and_nothing_else() {
        use Axis::{I, J, K};
        let layouts = [Layout::Rows, Layout::Columns];
        let mut loops = vec![
            Loop::Order([I, J, K]),
            Loop::Order([J, K, I]),
            Loop::Blocked,
        ];
        loops.extend(layouts.map(Loop::Decode));
        for which in loops {
            let mut seen = Seen(vec![0; which.numbers(SIZE)]);
            which.run(SIZE, &mut seen);
            assert!(seen.0.iter().all(|&count| count > 0), "{which:?}");
        }
        for layout in [Layout::Padded, Layout::Blocks] {
            let mut seen = Seen(vec![0; Loop::Decode(layout).numbers(SIZE)]);
            Loop::Decode(layout).run(SIZE, &mut seen);
            let keys = &seen.0[..SIZE.batch * layout.sequence(SIZE.context)];
            let used = keys.iter().filter(|&&count| count > 0).count();
            assert_eq!(used, SIZE.batch * SIZE.context * HEADS * DIM);
        }
    }

    #[test]
    fn products_are_products_in_every_order() {
        use Axis::{I, J, K};
        struct Numbers(Vec<f32>);
        impl Memory for Numbers {
            fn read(&mut self, place: usize) -> f32 {
                self.0[place]
            }
            fn write(&mut self, place: usize, value: f32) {
                self.0[place] = value;
            }
        }
        let n = SIZE.matrix;
        let result = |which: Loop| {
            let inputs = (0..2 * n * n).map(|i| ((i * 7) % 5) as f32);
            let mut memory = Numbers(inputs.chain(vec![0.0; n * n]).collect());
            which.run(SIZE, &mut memory);
            memory.0[2 * n * n..].to_vec()
        };
        let expected = result(Loop::Order([I, J, K]));
        for order in [[I, K, J], [J, I, K], [J, K, I], [K, I, J], [K, J, I]] {
            assert_eq!(result(Loop::Order(order)), expected, "{order:?}");
        }
        assert_eq!(result(Loop::Blocked), expected);
        assert!(expected.iter().any(|&x| x != 0.0));
    }
}
