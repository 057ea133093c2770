// Generates in several sequences of one context at the same time: their next tokens are
// evaluated side by side, in one batch, while prompts of others are still going on.
//   node sequences.mjs MODEL TOKENS
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [model_path, count] = process.argv.slice(2);
const PROMPTS = ["To be, or not", "Now is the winter of our discontent", "O Romeo", "Friends, Romans, countrymen"];
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: model_path});
const context = await model.createContext({contextSize: 256, sequences: PROMPTS.length, threads: 2});

async function generate(prompt) {
    const sequence = context.getSequence();
    const tokens = [model.tokens.bos, ...model.tokenize(prompt)];
    const generated = [];
    for await (const token of sequence.evaluate(tokens, {temperature: 0, yieldEogToken: true})) {
        generated.push(token);
        if (generated.length == Number(count)) break;
    }
    return {prompt: tokens, generated};
}

console.log(JSON.stringify(await Promise.all(PROMPTS.map(generate))));
await llama.dispose();
