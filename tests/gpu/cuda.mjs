// Generates tokens greedily with node-llama-cpp's CUDA build and prints their numbers.
//   node cuda.mjs MODEL TOKENS [LAYERS [SEQUENCES]]
// LAYERS: how many lie on the device, `max` if nothing is given. SEQUENCES are generated side by
// side in one context; the first prompt is the one of tests/attach/node.mjs.
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const PROMPTS = ["To be, or not", "Now is the winter of our discontent", "O Romeo", "Friends, Romans, countrymen"];
const [model_path, count, layers = "max", sequences = "1"] = process.argv.slice(2);
const level = process.env.LOG_LEVEL ?? LlamaLogLevel.error;
const llama = await getLlama({gpu: "cuda", build: "never", logLevel: level});
const model = await llama.loadModel({modelPath: model_path, gpuLayers: layers == "max" ? "max" : Number(layers)});
const context = await model.createContext({contextSize: 512, sequences: Number(sequences), threads: 2});

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

const said = await Promise.all(PROMPTS.slice(0, Number(sequences)).map(generate));
console.log(JSON.stringify({gpu: llama.gpu, devices: await llama.getGpuDeviceNames(), layers: model.gpuLayers, sequences: said}));
await llama.dispose();
