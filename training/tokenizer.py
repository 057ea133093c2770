"""A small SentencePiece-style tokenizer that encodes exactly as llama.cpp does.

llama.cpp's SPM tokenizer (`llm_tokenizer_spm` in llama-vocab.cpp) splits the text into
characters and joins, again and again, the adjacent pair whose concatenation is the piece with
the highest score, leftmost first. It knows no words. So that the same tokens can be found one
word at a time here, the vocabulary keeps one invariant:

    a piece holds the space marker only as its first character, and "\\n" is a piece of its own.

No piece can then reach across the start of a word or across a line end, and encoding word by
word gives the tokens that encoding the whole text gives. `--check` proves it on a text.

Deliberately absent: normalisation, special-token parsing, and a space put before the text
(`tokenizer.ggml.add_space_prefix` is false), so that decode(encode(text)) == text.
"""

import argparse
import collections
import heapq
import json
import re

SPACE_MARKER = "\u2581"
UNKNOWN_ID, BOS_ID, EOS_ID = 0, 1, 2
FIRST_BYTE_ID = 3

# The numbers of llama.cpp's enum llama_token_type, as written to the GGUF file.
TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 1, 2, 3, 6

# What merges may not cross, finer than a word: letters and punctuation stay apart, except that
# an apostrophe may begin a piece ("'ll", "'tis"). It shapes the vocabulary only.
MERGE_CHUNK = re.compile(
    f"{SPACE_MARKER}?'?[A-Za-z]+|{SPACE_MARKER}?[^A-Za-z\n{SPACE_MARKER}']+|{SPACE_MARKER}?'|{SPACE_MARKER}|\n"
)
WORD = re.compile(f"\n|{SPACE_MARKER}?[^\n{SPACE_MARKER}]+|{SPACE_MARKER}")


class Tokenizer:
    """Pieces with scores and types; a piece's index is its token id."""

    def __init__(self, pieces, scores, types):
        self.pieces, self.scores, self.types = pieces, scores, types
        self.id_of = {piece: token for token, piece in enumerate(pieces)}
        self._tokens_of_word = {}

    def __len__(self):
        return len(self.pieces)

    @classmethod
    def train(cls, text, alphabet, vocab_size):
        """Byte-pair merges learnt on `text`, over the characters of `alphabet`."""
        characters = sorted(set(escape(alphabet)))
        first_merge_id = FIRST_BYTE_ID + 256 + len(characters)
        merged = learn_merges(escape(text), vocab_size - first_merge_id)
        normal = characters + merged
        pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + normal
        # Only the order of the merged pieces' scores matters: an earlier merge wins.
        scores = [0.0] * (FIRST_BYTE_ID + 256) + [-float(rank) for rank in range(len(normal))]
        types = [TYPE_UNKNOWN, TYPE_CONTROL, TYPE_CONTROL] + [TYPE_BYTE] * 256 + [TYPE_NORMAL] * len(normal)
        tokenizer = cls(pieces, scores, types)
        tokenizer.assert_words_are_independent()
        return tokenizer

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        tokenizer = cls(fields["pieces"], fields["scores"], fields["types"])
        tokenizer.assert_words_are_independent()
        return tokenizer

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"pieces": self.pieces, "scores": self.scores, "types": self.types}, file)

    def encode(self, text):
        """Token ids of `text`, without a BOS token."""
        tokens = []
        for word in WORD.findall(escape(text)):
            if word not in self._tokens_of_word:
                self._tokens_of_word[word] = self.encode_symbols(word)
            tokens += self._tokens_of_word[word]
        return tokens

    def encode_varied(self, text, drop_probability, variants_per_word, rng):
        """Token ids of `text` where merges are skipped at random (BPE-dropout).

        Another spelling of the same text, used only to enlarge the training set. Each distinct
        word gets a few spellings, and each occurrence draws one of them: sampling every
        occurrence anew would take minutes.
        """
        tokens, variants_of = [], {}
        for word in WORD.findall(escape(text)):
            if word not in variants_of:
                count = variants_per_word if len(word) > 1 else 1
                variants_of[word] = [self.encode_symbols(word, drop_probability, rng) for _ in range(count)]
            variants = variants_of[word]
            tokens += variants[rng.randrange(len(variants))]
        return tokens

    def encode_symbols(self, escaped, drop_probability=0.0, rng=None):
        """llama.cpp's merge loop over one string in which spaces are already markers."""
        symbols = list(escaped)
        previous = list(range(-1, len(symbols) - 1))
        following = list(range(1, len(symbols))) + [-1] if symbols else []
        queue = []

        def try_add_bigram(left, right):
            if left == -1 or right == -1:
                return
            joined = symbols[left] + symbols[right]
            token = self.id_of.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self.scores[token], left, right, len(joined)))

        for right in range(1, len(symbols)):
            try_add_bigram(right - 1, right)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            # Either side may have been merged since the pair was queued.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            if drop_probability and rng.random() < drop_probability:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            following[left] = following[right]
            if following[right] >= 0:
                previous[following[right]] = left
            try_add_bigram(previous[left], left)
            try_add_bigram(left, following[left])

        tokens = []
        for symbol in filter(None, symbols):
            token = self.id_of.get(symbol)
            if token is not None:
                tokens.append(token)
            else:
                tokens += [FIRST_BYTE_ID + byte for byte in symbol.encode("utf-8")]
        return tokens

    def decode(self, tokens):
        """The text of `tokens`; control tokens are silent."""
        out = bytearray()
        for token in tokens:
            kind = self.types[token]
            if kind == TYPE_BYTE:
                out.append(token - FIRST_BYTE_ID)
            elif kind == TYPE_NORMAL:
                out += self.pieces[token].replace(SPACE_MARKER, " ").encode("utf-8")
        return out.decode("utf-8", errors="replace")

    def assert_words_are_independent(self):
        for piece, kind in zip(self.pieces, self.types):
            if kind == TYPE_NORMAL and (SPACE_MARKER in piece[1:] or ("\n" in piece and piece != "\n")):
                raise ValueError(f"tokenizer: piece {piece!r} reaches across a word or line boundary")


def escape(text):
    return text.replace(" ", SPACE_MARKER)


def learn_merges(escaped, merge_count):
    """The pieces that `merge_count` rounds of byte-pair encoding make, in order."""
    chunk_counts = collections.Counter(MERGE_CHUNK.findall(escaped))
    chunks = [(list(chunk), count) for chunk, count in sorted(chunk_counts.items())]
    pair_counts, chunks_with = collections.Counter(), collections.defaultdict(set)
    for index, (symbols, count) in enumerate(chunks):
        for pair in zip(symbols, symbols[1:]):
            pair_counts[pair] += count
            chunks_with[pair].add(index)

    merged, seen = [], set()
    while len(merged) < merge_count:
        # Ties go to the smaller pair, so that the vocabulary does not depend on hash order.
        pair = min(pair_counts, key=lambda candidate: (-pair_counts[candidate], candidate))
        piece = "".join(pair)
        # Two pairs can spell one piece; llama.cpp knows pieces only, so it is listed once.
        if piece not in seen:
            seen.add(piece)
            merged.append(piece)
        for index in chunks_with.pop(pair):
            symbols, count = chunks[index]
            for old in zip(symbols, symbols[1:]):
                pair_counts[old] -= count
            joined, position = [], 0
            while position < len(symbols):
                if tuple(symbols[position : position + 2]) == pair:
                    joined.append(piece)
                    position += 2
                else:
                    joined.append(symbols[position])
                    position += 1
            for new in zip(joined, joined[1:]):
                pair_counts[new] += count
                chunks_with[new].add(index)
            chunks[index] = (joined, count)
        del pair_counts[pair]
    return merged


def main():
    parser = argparse.ArgumentParser(description="check a tokenizer against a text")
    parser.add_argument("--check", required=True, metavar="TEXT", help="text file to encode and decode")
    parser.add_argument("--tokenizer", metavar="JSON", help="tokenizer.json; by default one is trained on TEXT")
    parser.add_argument("--vocab", type=int, default=1024)
    args = parser.parse_args()
    with open(args.check, encoding="utf-8", newline="") as file:
        text = file.read()
    tokenizer = Tokenizer.load(args.tokenizer) if args.tokenizer else Tokenizer.train(text, text, args.vocab)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text, "decode(encode(text)) differs from text"
    whole = tokenizer.encode_symbols(escape(text))
    assert whole == tokens, "encoding word by word differs from encoding the whole text"
    used = len(set(tokens))
    print(f"{len(text)} characters, {len(tokens)} tokens, {len(text) / len(tokens):.3f} characters per token, "
          f"{used} of {len(tokenizer)} pieces used; round trip and whole-text encoding agree")


if __name__ == "__main__":
    main()
