// Generates with guesses of a second context: each is evaluated beside the token that it was
// guessed from, and kept or dropped.
//   node drafting.mjs MODEL DRAFT-MODEL TOKENS
import {DraftSequenceTokenPredictor, getLlama, LlamaLogLevel} from "node-llama-cpp";

const [model_path, draft_path, count] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: model_path});
const draft_model = await llama.loadModel({modelPath: draft_path});
const context = await model.createContext({contextSize: 512, threads: 2});
const draft_context = await draft_model.createContext({contextSize: 512, threads: 2});
const tokenPredictor = new DraftSequenceTokenPredictor(draft_context.getSequence(), {minTokens: 1, maxTokens: 4, minConfidence: 0});
const sequence = context.getSequence({tokenPredictor});
const tokens = [model.tokens.bos, ...model.tokenize("ROMEO:\nI'll not believe it.\n\n")];
const generated = [];
for await (const token of sequence.evaluate(tokens, {temperature: 0, yieldEogToken: true})) {
    generated.push(token);
    if (generated.length == Number(count)) break;
}
console.log(JSON.stringify({prompt: tokens, generated}));
await llama.dispose();
