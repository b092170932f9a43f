// Load from the official Java client, one kind of it after another in the same warm JVM.
//
// Run by tests/bench/java_load.py as a single source file. Every line of standard input asks for
// one run, and is answered by one line of JSON:
//
//   <kind> <name server> <topic> <body bytes> <parallel> <warm-up s> <seconds> <argument>
//
//   async        <parallel> sends unanswered at a time
//   sync         <parallel> threads, each of which waits for its answer
//   batch        the same, with batches of <argument> messages
//   orderly      the same, the queue selected by a key
//   delayed      as async, with delay level <argument>
//   transaction  as sync, committed by the local transaction
//   push         a push consumer with <parallel> threads reads <argument> messages from the start
//   sql          the same, selecting them with a SQL92 expression that all of them match
//   pop          the same, of a group that pops, rebalanced by the broker
//
// Sends: after the warm-up all that are answered within <seconds> count. The client's own retries
// are off, so that a failure is a failure. Latencies run from the call to its answer.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

public class Load {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final long DRAIN_TIMEOUT_S = 60;
    private static final int LATENCIES_MAX = 4_000_000;
    private static final List<String> READS = Arrays.asList("push", "sql", "pop");
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    private final DefaultMQProducer producer;
    private final String kind;
    private final String topic;
    private final byte[] body;
    private final int parallel;
    private final int argument;

    // Of the measured time only.
    private final long[] latenciesNs = new long[LATENCIES_MAX];
    private final AtomicInteger latencyCount = new AtomicInteger();
    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicReference<Throwable> firstError = new AtomicReference<>();
    private volatile boolean isMeasured;
    private volatile boolean isStopped;

    private Load(String[] words) throws Exception {
        kind = words[0];
        topic = words[2];
        body = new byte[Integer.parseInt(words[3])];
        Arrays.fill(body, (byte) 'x');
        parallel = Integer.parseInt(words[4]);
        argument = Integer.parseInt(words[7]);
        producer = producer(words[1], kind.equals("transaction"));
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // the client's logging announces itself there
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            String answer;
            if (READS.contains(words[0])) {
                answer = consume(words);
            } else {
                answer = new Load(words).run(
                    Double.parseDouble(words[5]), Double.parseDouble(words[6]));
            }
            answers.println(answer);
            answers.flush();
        }
        // Not shutdown(): it can take seconds, and nothing of ours is left in flight.
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQProducer producer(String nameServer, boolean isTransactional)
        throws Exception {
        String key = nameServer + isTransactional;
        DefaultMQProducer made = PRODUCERS.get(key);
        if (made == null) {
            String group = "load-" + PRODUCERS.size();
            if (isTransactional) {
                TransactionMQProducer transactional = new TransactionMQProducer(group);
                transactional.setTransactionListener(new Committing());
                made = transactional;
            } else {
                made = new DefaultMQProducer(group);
            }
            made.setNamesrvAddr(nameServer);
            made.setInstanceName(group);
            made.setSendMsgTimeout(SEND_TIMEOUT_MS);
            made.setRetryTimesWhenSendAsyncFailed(0);
            made.setRetryTimesWhenSendFailed(0);
            made.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            made.start();
            PRODUCERS.put(key, made);
        }
        return made;
    }

    private static final class Committing implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    /** Sends for so long, waits for all answers, and returns the line of JSON. */
    private String run(double warmUpS, double seconds) throws Exception {
        List<Thread> threads = new ArrayList<>();
        boolean isAsync = kind.equals("async") || kind.equals("delayed");
        for (int i = 0; i < (isAsync ? 1 : parallel); i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    if (isAsync) {
                        sendAsync();
                    } else {
                        sendSync(number);
                    }
                } catch (Throwable error) {
                    firstError.compareAndSet(null, error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        Thread.sleep((long) (warmUpS * 1000));
        long cpuNs = cpuNs();
        long begunNs = System.nanoTime();
        isMeasured = true;
        Thread.sleep((long) (seconds * 1000));
        isMeasured = false;
        double elapsedS = (System.nanoTime() - begunNs) / 1e9;
        double cpuS = (cpuNs() - cpuNs) / 1e9;
        long count = messages.get();
        isStopped = true;
        for (Thread thread : threads) {
            thread.join(DRAIN_TIMEOUT_S * 1000);
            if (thread.isAlive()) {
                throw new IllegalStateException(
                    "answers are missing " + DRAIN_TIMEOUT_S + " s after the last send");
            }
        }
        if (firstError.get() != null) {
            System.err.println(kind + ": " + failed.get() + " failed, first: " + firstError.get());
        }
        int known = Math.min(latencyCount.get(), LATENCIES_MAX);
        long[] sorted = Arrays.copyOf(latenciesNs, known);
        Arrays.sort(sorted);
        return json(
            count, elapsedS, cpuS, percentileMs(sorted, 0.5), percentileMs(sorted, 0.99), failed.get());
    }

    private Message message() {
        Message message = new Message(topic, body);
        if (kind.equals("delayed")) {
            message.setDelayTimeLevel(argument);
        }
        return message;
    }

    private void sendSync(int number) throws Exception {
        int sent = 0;
        while (!isStopped) {
            long begunNs = System.nanoTime();
            int count = 1;
            try {
                SendResult result;
                if (kind.equals("batch")) {
                    List<Message> batch = new ArrayList<>(argument);
                    for (int i = 0; i < argument; i++) {
                        batch.add(message());
                    }
                    count = argument;
                    begunNs = System.nanoTime();
                    result = producer.send(batch);
                } else if (kind.equals("orderly")) {
                    String key = "key-" + number + "-" + sent++ % 16;
                    result = producer.send(message(), new SelectMessageQueueByHash(), key);
                } else if (kind.equals("transaction")) {
                    result = producer.sendMessageInTransaction(message(), null);
                } else {
                    result = producer.send(message());
                }
                settle(begunNs, count, error(result));
            } catch (Exception error) {
                settle(begunNs, count, error);
            }
        }
    }

    private void sendAsync() throws Exception {
        Semaphore permits = new Semaphore(parallel);
        while (!isStopped) {
            permits.acquire();
            long begunNs = System.nanoTime();
            // Some client versions report one failure both ways, as exception and to the callback.
            AtomicInteger settled = new AtomicInteger();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    once(error(result));
                }

                @Override
                public void onException(Throwable error) {
                    once(error);
                }

                private void once(Throwable error) {
                    if (settled.getAndIncrement() == 0) {
                        settle(begunNs, 1, error);
                        permits.release();
                    }
                }
            };
            try {
                producer.send(message(), callback);
            } catch (Exception error) {
                callback.onException(error);
            }
        }
        if (!permits.tryAcquire(parallel, DRAIN_TIMEOUT_S, TimeUnit.SECONDS)) {
            Thread.sleep(Long.MAX_VALUE); // run() reports it
        }
    }

    private static Throwable error(SendResult result) {
        boolean isOk = result.getSendStatus() == SendStatus.SEND_OK;
        return isOk ? null : new IllegalStateException(result.getSendStatus().toString());
    }

    private void settle(long begunNs, int count, Throwable error) {
        if (error != null) {
            failed.incrementAndGet();
            firstError.compareAndSet(null, error);
        } else if (isMeasured) {
            messages.addAndGet(count);
            int at = latencyCount.getAndIncrement();
            if (at < LATENCIES_MAX) {
                latenciesNs[at] = System.nanoTime() - begunNs;
            }
        }
    }

    /** Reads so many messages from the start of a topic with a new group. */
    private static String consume(String[] words) throws Exception {
        int count = Integer.parseInt(words[7]);
        int threads = Integer.parseInt(words[4]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-" + System.nanoTime());
        consumer.setNamesrvAddr(words[1]);
        consumer.setInstanceName(consumer.getConsumerGroup());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setConsumeMessageBatchMaxSize(32);
        if (words[0].equals("pop")) {
            popFrom(words[1], words[2], consumer.getConsumerGroup());
            consumer.setClientRebalance(false);
            // With 96, the default, the client pauses for 50 ms whenever so many wait.
            consumer.setPopThresholdForQueue(1000);
        }
        if (words[0].equals("sql")) {
            consumer.subscribe(words[2], MessageSelector.bySql("a IS NULL AND TRUE"));
        } else {
            consumer.subscribe(words[2], "*");
        }
        AtomicLong begunNs = new AtomicLong();
        AtomicLong cpuNs = new AtomicLong();
        AtomicLong seen = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (begunNs.compareAndSet(0, System.nanoTime())) {
                cpuNs.set(cpuNs());
            }
            if (seen.addAndGet(messages.size()) >= count) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean isDone = all.await(120, TimeUnit.SECONDS);
        double elapsedS = (System.nanoTime() - begunNs.get()) / 1e9;
        double cpuS = (cpuNs() - cpuNs.get()) / 1e9;
        consumer.shutdown();
        return json(seen.get(), elapsedS, cpuS, 0, 0, isDone ? 0 : count - seen.get());
    }

    /** Has a group pop a topic, at all brokers that have it. */
    private static void popFrom(String nameServer, String topic, String group) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin-" + group);
        admin.start();
        for (BrokerData broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            admin.setMessageRequestMode(
                broker.selectBrokerAddr(), topic, group, MessageRequestMode.POP, 0, SEND_TIMEOUT_MS);
        }
        admin.shutdown();
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static String json(
        long count, double elapsedS, double cpuS, double p50Ms, double p99Ms, long failed
    ) {
        return String.format(
            Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %.6f, \"per_second\": %.1f, \"client_cpu_us\": %.3f,"
                + " \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"failed\": %d}",
            count, elapsedS, count / elapsedS, cpuS / Math.max(count, 1) * 1e6, p50Ms, p99Ms,
            failed);
    }

    private static double percentileMs(long[] sortedNs, double fraction) {
        if (sortedNs.length == 0) {
            return 0;
        }
        int index = (int) Math.ceil(fraction * sortedNs.length) - 1;
        return sortedNs[Math.max(index, 0)] / 1e6;
    }
}
