/** Tokens by number, fetched in blocks as they come into sight. */
import type { Api } from '../../api';
import type { TokenInfo } from '../../generated/index';

const BLOCK_TOKENS = 256;
/** Blocks that are kept: some hundred thousand tokens would fill the tab. */
const MAX_BLOCKS = 64;

export class TokenTexts {
  private readonly blocks = new Map<number, Map<number, TokenInfo>>();
  private readonly pending = new Set<number>();

  constructor(
    private readonly api: Api,
    private readonly onArrival: () => void,
  ) {}

  /** The token, if it is there; else it is fetched and `onArrival` called. */
  get(token: number): TokenInfo | undefined {
    const block = Math.floor(token / BLOCK_TOKENS);
    const known = this.blocks.get(block);
    if (!known) this.fetch(block);
    return known?.get(token);
  }

  forget(): void {
    this.blocks.clear();
  }

  private fetch(block: number): void {
    if (this.pending.has(block) || block < 0) return;
    this.pending.add(block);
    const first = block * BLOCK_TOKENS;
    void this.api.tokens(first, first + BLOCK_TOKENS - 1).then(
      (tokens) => {
        this.blocks.set(block, new Map(tokens.map((token) => [token.token, token])));
        for (const oldest of this.blocks.keys()) {
          if (this.blocks.size <= MAX_BLOCKS) break;
          this.blocks.delete(oldest);
        }
        this.pending.delete(block);
        this.onArrival();
      },
      // Texts are a help, not the data: the numbers stay. The block is not asked for again.
      () => this.blocks.set(block, new Map()),
    );
  }
}
