// Drives the official Node.js client (gRPC) against a proxy, and reports what it saw.
//
//   node main.js ENDPOINT TOPICS        TOPICS: {"normal": ..., "fifo": ..., "delay": ...} as JSON
//
// The report is the last line of the output: one JSON object.

import client from 'rocketmq-client-nodejs';

const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = client;
const COUNT = 8;
const PATIENCE_MS = 120_000;
const quiet = { info() {}, warn() {}, error: (...texts) => console.error(...texts) };

const [endpoints, topicsText] = process.argv.slice(2);
const topics = JSON.parse(topicsText);
const options = { endpoints, namespace: '', logger: quiet, requestTimeout: 10_000 };
const report = {};

async function until(isDone, what) {
  for (const end = Date.now() + PATIENCE_MS; !isDone(); await sleep(20)) {
    if (Date.now() > end) throw new Error(`${what}: nothing within ${PATIENCE_MS} ms`);
  }
}

const sleep = ms => new Promise(done => setTimeout(done, ms));

const producer = new Producer({ ...options, topic: Object.values(topics) });
await producer.startup();

async function send(topic, more = () => ({})) {
  for (let number = 0; number < COUNT; number++) {
    await producer.send({
      topic,
      tag: ['even', 'odd'][number % 2],
      keys: [`key-${number}`],
      body: Buffer.from(String(number)),
      ...more(number),
    });
  }
}

// Receive, acknowledge, and say what came; nothing of it may come again.
async function simple(topic, group) {
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: group, subscriptions: new Map([[topic, 'odd']]), awaitDuration: 5000,
  });
  await consumer.startup();
  const got = new Set();
  await untilReceived(consumer, got, COUNT / 2);
  const again = await consumer.receive(16, 60_000);
  return { got: [...got].sort(), again: again.length };
}

async function untilReceived(consumer, got, count) {
  for (const end = Date.now() + PATIENCE_MS; got.size < count;) {
    if (Date.now() > end) throw new Error(`${got.size} of ${count} messages`);
    for (const message of await consumer.receive(16, 60_000)) {
      got.add(message.body.toString());
      await consumer.ack(message);
    }
  }
}

// The first attempt at each message fails.
async function push(topic, group, count, failing) {
  const attempts = {};
  const order = [];
  const consumer = new PushConsumer({
    ...options,
    consumerGroup: group,
    subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(message) {
        const text = message.body.toString();
        attempts[text] = (attempts[text] ?? 0) + 1;
        if (failing && attempts[text] === 1) return ConsumeResult.FAILURE;
        order.push(text);
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await until(() => order.length >= count, `push consumer of ${topic}`);
  return { attempts, order };
}

await send(topics.normal);
report.simple = await simple(topics.normal, `${topics.normal}-s`);
report.retried = await push(topics.normal, `${topics.normal}-g`, COUNT, true);
await send(topics.fifo, () => ({ messageGroup: 'one' }));
report.fifo = await push(topics.fifo, `${topics.fifo}-g`, COUNT, false);
const begun = Date.now();
await send(topics.delay, () => ({ delay: 3000 }));
report.delayed = await push(topics.delay, `${topics.delay}-g`, COUNT, false);
report.delayedMs = Date.now() - begun;
console.log(JSON.stringify(report));
process.exit(0); // without a shutdown, which takes this client ten seconds for each of them
