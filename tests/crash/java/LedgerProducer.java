// Eight official Java producers, and the ledger of what they tried and what was acknowledged.
//
// Run by tests/crash/java_sender.py as a single source file, until standard input ends:
//   java -cp '<client jars>/*' LedgerProducer.java <name server> <topic> <ledger> <seed>
//     <number of the first producer> <timeout of a send, ms> <pause after each, ms>
//
// Lines and bodies are those of tests/crash/ledger.py. Half of the producers send synchronously
// from four threads each, half asynchronously with four sends under way; one send in eight is a
// batch. The client's own retries are off, so a message is stored once or not at all.

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

public class LedgerProducer {
    private static final int PRODUCERS = 8;
    private static final int IN_FLIGHT = 4;
    private static final int SIZE_MAX = 3000;
    private static final int BATCH_MAX = 12;
    private static final int ROUTE_INTERVAL_MS = 500;
    private static final long PAUSE_MS = 20;

    private static final AtomicBoolean stopped = new AtomicBoolean();
    private static BufferedWriter ledger;
    private static int sendTimeoutMs;
    private static int pauseMs;

    private final int number;
    private final DefaultMQProducer producer;
    private final String topic;
    private final Random random;
    private final AtomicInteger messages = new AtomicInteger();
    private final AtomicInteger requests = new AtomicInteger();

    private LedgerProducer(int number, String nameServer, String topic, long seed) throws Exception {
        this.number = number;
        this.topic = topic;
        this.random = new Random(seed * PRODUCERS + number);
        producer = new DefaultMQProducer("ledger-" + number);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("ledger-" + number);
        producer.setSendMsgTimeout(sendTimeoutMs);
        producer.setPollNameServerInterval(ROUTE_INTERVAL_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryAnotherBrokerWhenNotStoreOK(false);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 7) {
            System.err.println(
                "expected: <name server> <topic> <ledger> <seed> <first> <timeout> <pause>");
            System.exit(2);
        }
        ledger = Files.newBufferedWriter(
            Path.of(args[2]), StandardCharsets.US_ASCII,
            StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        int first = Integer.parseInt(args[4]);
        sendTimeoutMs = Integer.parseInt(args[5]);
        pauseMs = Integer.parseInt(args[6]);
        List<Thread> threads = new ArrayList<>();
        for (int number = first; number < first + PRODUCERS; number++) {
            LedgerProducer one = new LedgerProducer(number, args[0], args[1], Long.parseLong(args[3]));
            if (number % 2 == 0) {
                for (int i = 0; i < IN_FLIGHT; i++) {
                    threads.add(new Thread(one::sendAndWait));
                }
            } else {
                threads.add(new Thread(one::sendAhead));
            }
        }
        for (Thread thread : threads) {
            thread.setUncaughtExceptionHandler((failed, error) -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            });
            thread.start();
        }
        while (System.in.read() >= 0) {
            // Only its end matters.
        }
        stopped.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        synchronized (LedgerProducer.class) {
            ledger.close();
        }
        // Not shutdown(): it can take seconds, and nothing of ours is left in flight.
        Runtime.getRuntime().halt(0);
    }

    /** Sends synchronously until told to stop. */
    private void sendAndWait() {
        while (!stopped.get()) {
            Request request = new Request();
            boolean stored = false;
            try {
                SendResult result = request.messages.size() == 1
                    ? producer.send(request.messages.get(0))
                    : producer.send(request.messages);
                stored = request.settle(result);
            } catch (Exception error) {
                request.fail(error);
            }
            pause(stored ? pauseMs : Math.max(PAUSE_MS, pauseMs));
        }
    }

    /** Sends with callbacks, IN_FLIGHT of them outstanding, until told to stop. */
    private void sendAhead() {
        Semaphore permits = new Semaphore(IN_FLIGHT);
        AtomicBoolean failing = new AtomicBoolean();
        while (!stopped.get()) {
            permits.acquireUninterruptibly();
            Request request = new Request();
            // Some failures are reported both ways, as exception and to the callback.
            AtomicBoolean settled = new AtomicBoolean();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (!settled.getAndSet(true)) {
                        failing.set(!request.settle(result));
                        permits.release();
                    }
                }

                @Override
                public void onException(Throwable error) {
                    if (!settled.getAndSet(true)) {
                        failing.set(true);
                        request.fail(error);
                        permits.release();
                    }
                }
            };
            try {
                if (request.messages.size() == 1) {
                    producer.send(request.messages.get(0), callback);
                } else {
                    producer.send(request.messages, callback);
                }
            } catch (Exception error) {
                callback.onException(error);
            }
            pause(failing.getAndSet(false) ? Math.max(PAUSE_MS, pauseMs) : pauseMs / IN_FLIGHT);
        }
        try {
            // What is not answered by now stays unknown.
            permits.tryAcquire(IN_FLIGHT, 2L * sendTimeoutMs, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static void pause(long ms) {
        if (ms == 0) {
            return;
        }
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** One message or one batch, and its lines in the ledger. */
    private final class Request {
        private final String id = number + "." + requests.getAndIncrement();
        private final List<Message> messages = new ArrayList<>();

        Request() {
            int count;
            synchronized (random) {
                count = random.nextInt(8) == 0 ? 2 + random.nextInt(BATCH_MAX - 1) : 1;
            }
            StringBuilder line = new StringBuilder("A ").append(id);
            for (int i = 0; i < count; i++) {
                int size;
                synchronized (random) {
                    size = (int) Math.pow(SIZE_MAX, random.nextDouble()) - 1;
                }
                String key = number + "-" + LedgerProducer.this.messages.getAndIncrement() + "-" + size;
                line.append(' ').append(key);
                messages.add(new Message(topic, "t" + number, bodyOf(key, size)));
            }
            write(line.toString());
        }

        boolean settle(SendResult result) {
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                write("F " + id + " unknown " + result.getSendStatus());
                return false;
            }
            StringBuilder line = new StringBuilder("K ").append(id)
                .append(' ').append(result.getMessageQueue().getQueueId())
                .append(' ').append(result.getQueueOffset());
            String broker = "";
            for (String offsetId : result.getOffsetMsgId().split(",")) {
                int prefix = offsetId.length() - 16;
                line.append(' ').append(Long.parseLong(offsetId.substring(prefix), 16));
                broker = offsetId.substring(0, prefix).toUpperCase(java.util.Locale.ROOT);
            }
            write(line.append(" @").append(broker).toString());
            return true;
        }

        void fail(Throwable error) {
            String text = String.valueOf(error).replaceAll("\\s+", " ");
            write("F " + id + (wasRefused(error) ? " known " : " unknown ") + text);
        }

        /** Is it certain that nothing was stored: no connection, or the broker's own refusal? */
        private boolean wasRefused(Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof RemotingConnectException || cause instanceof MQBrokerException) {
                    return true;
                }
            }
            return false;
        }
    }

    private static byte[] bodyOf(String key, int size) {
        byte[] head = (key + "|").getBytes(StandardCharsets.US_ASCII);
        byte[] body = java.util.Arrays.copyOf(head, head.length + size);
        byte[] digest;
        try {
            digest = MessageDigest.getInstance("SHA-256").digest(head);
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
        for (int i = 0; i < size; i++) {
            body[head.length + i] = digest[i % digest.length];
        }
        return body;
    }

    private static void write(String line) {
        synchronized (LedgerProducer.class) {
            try {
                // Not ASCII: only in texts of errors, of which nothing is read.
                ledger.write(line.replaceAll("[^\\x20-\\x7e]", "?"));
                ledger.write('\n');
                ledger.flush();
            } catch (IOException error) {
                throw new IllegalStateException("ledger", error);
            }
        }
    }
}
