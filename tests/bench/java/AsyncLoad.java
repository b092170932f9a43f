// Load from the official Java client: asynchronous sends, a fixed number of them in flight.
//
// Run by tests/bench/java_load.py as a single source file:
//   java -cp '<client jars>/*' AsyncLoad.java <name server> <topic> <body bytes> <count> <in flight> <warm-up count>
//
// After the warm-up it sends <count> messages and prints one line of JSON: time from the first
// send to the last answer, latencies from the call of send() to its callback. The client's own
// retries are off, so that a failure is a failure.

import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

public class AsyncLoad {
    private static final long SEND_TIMEOUT_MS = 10_000;
    private static final long DRAIN_TIMEOUT_S = 60;

    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final int inFlight;

    private AsyncLoad(DefaultMQProducer producer, String topic, int bodyBytes, int inFlight) {
        this.producer = producer;
        this.topic = topic;
        this.body = new byte[bodyBytes];
        Arrays.fill(this.body, (byte) 'x');
        this.inFlight = inFlight;
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 6) {
            System.err.println("expected: <name server> <topic> <body bytes> <count> <in flight> <warm-up count>");
            System.exit(2);
        }
        DefaultMQProducer producer = new DefaultMQProducer("async-load");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout((int) SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        AsyncLoad load = new AsyncLoad(
            producer, args[1], Integer.parseInt(args[2]), Integer.parseInt(args[4]));
        int count = Integer.parseInt(args[3]);
        int warmUpCount = Integer.parseInt(args[5]);

        if (warmUpCount > 0) {
            load.run(warmUpCount);
        }
        System.out.println(load.run(count));
        System.out.flush();
        // Not shutdown(): it can take seconds, and nothing of ours is left in flight.
        Runtime.getRuntime().halt(0);
    }

    /** Sends so many messages, waits for all answers, and returns the JSON line. */
    private String run(int count) throws Exception {
        Semaphore permits = new Semaphore(inFlight);
        long[] latenciesNs = new long[count];
        AtomicInteger failed = new AtomicInteger();
        AtomicReference<Throwable> firstError = new AtomicReference<>();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            permits.acquire();
            send(i, permits, latenciesNs, failed, firstError);
        }
        // All permits back: every callback ran, and its writes are visible here.
        if (!permits.tryAcquire(inFlight, DRAIN_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("answers missing " + DRAIN_TIMEOUT_S + " s after the last send");
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        if (firstError.get() != null) {
            System.err.println(failed.get() + " failed, first: " + firstError.get());
        }
        Arrays.sort(latenciesNs);
        return String.format(
            Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %.6f, \"per_second\": %.1f,"
                + " \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"failed\": %d}",
            count, seconds, (count - failed.get()) / seconds,
            percentileMs(latenciesNs, 0.50), percentileMs(latenciesNs, 0.99), failed.get());
    }

    private void send(
        int index,
        Semaphore permits,
        long[] latenciesNs,
        AtomicInteger failed,
        AtomicReference<Throwable> firstError
    ) {
        long sentAt = System.nanoTime();
        // Some client versions report one failure both ways, as exception and to the callback.
        AtomicInteger settled = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                boolean ok = result.getSendStatus() == SendStatus.SEND_OK;
                settle(ok ? null : new IllegalStateException(result.getSendStatus().toString()));
            }

            @Override
            public void onException(Throwable error) {
                settle(error);
            }

            private void settle(Throwable error) {
                if (settled.getAndIncrement() > 0) {
                    return;
                }
                latenciesNs[index] = System.nanoTime() - sentAt;
                if (error != null) {
                    failed.incrementAndGet();
                    firstError.compareAndSet(null, error);
                }
                permits.release();
            }
        };
        try {
            producer.send(new Message(topic, body), callback);
        } catch (Exception error) {
            callback.onException(error);
        }
    }

    private static double percentileMs(long[] sortedNs, double fraction) {
        int index = (int) Math.ceil(fraction * sortedNs.length) - 1;
        return sortedNs[Math.max(index, 0)] / 1e6;
    }
}
