// Generates tokens greedily with node-llama-cpp and prints their numbers.
//   node node.mjs MODEL TOKENS [PROMPT]
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [model_path, count, prompt = "To be, or not"] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: model_path});
const context = await model.createContext({contextSize: 512, threads: 2});
const sequence = context.getSequence();
const tokens = [model.tokens.bos, ...model.tokenize(prompt)];
const generated = [];
for await (const token of sequence.evaluate(tokens, {temperature: 0, yieldEogToken: true})) {
    generated.push(token);
    if (generated.length == Number(count)) break;
}
console.log(JSON.stringify({prompt: tokens, generated}));
await llama.dispose();
