// llama.cpp through the npm package node-llama-cpp, for bench_peers.py: one JSON object a line in, one out.
//
//   node llama_worker.mjs PEERS_DIR MODEL.gguf THREADS
//
// PEERS_DIR is the folder where `npm install --ignore-scripts node-llama-cpp` ran. The requests and the answers are
// those of protocol.py; times are seconds of this process's monotonic clock.

import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {join, resolve} from "node:path";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const CONTEXT = 1024; // tokens of one sequence, prompt and reply together
const [peersDir, modelPath, threadsText] = process.argv.slice(2);
const threads = Number(threadsText);

const now = () => Number(process.hrtime.bigint()) / 1e9;
const answer = (value) => process.stdout.write(JSON.stringify(value) + "\n");

/** What the worker runs on. Rejects with a sentence if the package or the model cannot be loaded. */
async function load() {
    const require = createRequire(join(resolve(peersDir), "package.json"));
    const entry = require.resolve("node-llama-cpp");
    const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry).href);
    const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: LlamaLogLevel.error});
    const model = await llama.loadModel({modelPath});
    const facts = {
        "node-llama-cpp": JSON.parse(readFileSync(join(entry, "..", "..", "package.json"), "utf8")).version,
        "llama.cpp": llama.llamaCppRelease.release,
        node: process.versions.node,
        threads: llama.maxThreads
    };
    return {llama, model, facts};
}

const firstLine = (error) => String(error?.message ?? error).split("\n")[0];
const {llama, model, facts} = await load().catch((error) => {
    answer({error: firstLine(error)});
    process.exit(1);
});
const contexts = new Map();

/** The sequences of a context made for exactly `count` of them, empty. */
async function emptySequences(count) {
    if (!contexts.has(count)) {
        const context = await model.createContext({sequences: count, contextSize: CONTEXT, batchSize: 512, threads});
        contexts.set(count, Array.from({length: count}, () => context.getSequence()));
    }
    const sequences = contexts.get(count);
    await Promise.all(sequences.map((sequence) => sequence.clearHistory()));
    return sequences;
}

/** One greedy reply of exactly `tokens` tokens; the times at which they came. An end token is a token like any other. */
async function reply(sequence, prompt, tokens) {
    const events = [];
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        events.push([now(), 1]);
        if (events.length === tokens)
            break;
    }
    return events;
}

/** All prompts at the same time, in one context, so that a step of llama.cpp holds a token of each. */
async function generate({prompts, tokens}) {
    const sequences = await emptySequences(prompts.length);
    const submitted = now();
    const events = await Promise.all(prompts.map((prompt, at) => reply(sequences[at], prompt, tokens)));
    return {submitted, events};
}

answer({ready: facts});
for await (const line of createInterface({input: process.stdin})) {
    try {
        answer(await generate(JSON.parse(line)));
    } catch (error) {
        answer({error: firstLine(error)});
    }
}
await llama.dispose();
process.exit(0);
