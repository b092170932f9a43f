// Fills a store through the official client, and the ledger of what the broker answered.
//
// Run by tests/interop/golden.py as a single source file, with any client from 4.5.1 to 5.3.3:
//   java -cp '<client jars>/*' StoreWriter.java <name server> <broker name> <topics> <queues>
//       <seed> <messages> <delayed> <transactions> <pause ms> <ledger> <name>
//
// <messages> go asynchronously to the queues of <topics> (separated by commas), one send in
// eighty as a batch of up to 32. <delayed> more have delay levels, <transactions> more are half
// messages: a third each committed, rolled back and left pending; the property "fate" of pending
// ones says what they are to become later. After the first half nothing is sent for <pause ms>, so
// that a time range can end there whatever the resolution of an index.
// Then "written" goes to standard output. A line on standard input then starts messages one by
// one until one fails, the end of standard input ends the program. As long as it runs it answers
// when the broker asks about half messages of its group, "writer-" and the first topic: those
// with a property "fate" get it.
//
// Lines of the ledger, fields separated by tabs, one for each message that was acknowledged:
//   kind (single, batch, delayed, half, last), topic, queue id, queue offset, message id, offset
//   message id, time of the answer in ms, delay level, fate (commit, rollback, pending, -),
//   CRC32 of the body, its bytes, properties in hex (name 0x01 value 0x02 ...)
// <name> is part of all keys, so that those of two runs on one store differ. Keys shared by many
// are <name>-g... of the messages sent asynchronously, <name>-s... of the others. No send is
// retried.

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class StoreWriter {
    private static final int IN_FLIGHT = 200;
    private static final int SEND_TIMEOUT_MS = 60_000;
    private static final int SENDS_PER_BATCH = 80;
    private static final int BATCH_MAX = 32;
    private static final int GROUPS = 500;
    private static final int BODY_MAX = 1_000;
    // Two that are due while the test runs, and two that are due hours later.
    private static final int[] LEVELS = {1, 2, 17, 18};
    private static final String[] FATES = {"commit", "rollback", "pending"};
    private static final String[] TAGS = {null, "a", "b", "Grüße", "世界 😀"};
    private static final String TEXT = "Grüße, 世界 😀 = \\ \" ; \t\n";

    private final TransactionMQProducer producer;
    private final String brokerName;
    private final String[] topics;
    private final int queues;
    private final Random random;
    private final String name;
    private final BufferedWriter ledger;
    private final Semaphore permits = new Semaphore(IN_FLIGHT);
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private int number;
    private String shared = "-s";

    private StoreWriter(String[] args) throws Exception {
        brokerName = args[1];
        topics = args[2].split(",");
        queues = Integer.parseInt(args[3]);
        random = new Random(Long.parseLong(args[4]));
        ledger = Files.newBufferedWriter(Path.of(args[9]), StandardCharsets.UTF_8);
        name = args[10];
        producer = new TransactionMQProducer("writer-" + topics[0]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryAnotherBrokerWhenNotStoreOK(false);
        producer.setTransactionListener(new Fates());
        producer.start();
    }

    public static void main(String[] args) {
        // Not shutdown(): it can take seconds. Without a halt, the client's threads go on.
        try {
            writeAll(args);
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void writeAll(String[] args) throws Exception {
        StoreWriter writer = new StoreWriter(args);
        writer.sendFirst();
        int messages = Integer.parseInt(args[5]) - 1;
        writer.sendDelayed(Integer.parseInt(args[6]));
        writer.sendTransactions(Integer.parseInt(args[7]));
        writer.sendMany(messages / 2);
        TimeUnit.MILLISECONDS.sleep(Long.parseLong(args[8]));
        writer.sendMany(messages - messages / 2);
        writer.flush();
        System.out.println("written");
        System.out.flush();
        if (System.in.read() >= 0) {
            writer.sendUntilFailure();
        }
    }

    /** Alone: clients of 4.x that connect in two threads at once close the connection in use. */
    private void sendFirst() throws Exception {
        Message message = message(someTopic());
        long[] crc = crc(message);
        SendResult result = check(producer.send(message, someQueue(message.getTopic())));
        note("single", result, message, 0, "-", crc);
    }

    private void sendMany(int count) throws Exception {
        shared = "-g";
        int left = count;
        while (left > 0) {
            if (random.nextInt(SENDS_PER_BATCH) == 0) {
                left -= sendBatch(Math.min(left, 1 + random.nextInt(BATCH_MAX)));
            } else {
                sendOne();
                left--;
            }
        }
        drain();
    }

    private void sendOne() throws Exception {
        Message message = message(someTopic());
        long[] crc = crc(message);
        permits.acquire();
        producer.send(message, someQueue(message.getTopic()), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                try {
                    check(result);
                    note("single", result, message, 0, "-", crc);
                } catch (Exception error) {
                    failure.compareAndSet(null, error);
                }
                permits.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.compareAndSet(null, error);
                permits.release();
            }
        });
    }

    private int sendBatch(int count) throws Exception {
        String topic = someTopic();
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            batch.add(message(topic));
        }
        SendResult result = check(producer.send(batch, someQueue(topic)));
        String[] offsetIds = result.getOffsetMsgId().split(",");
        String[] ids = result.getMsgId().split(",");
        if (offsetIds.length != count || ids.length != count) {
            throw new IllegalStateException("a batch of " + count + " was answered by " + result);
        }
        for (int i = 0; i < count; i++) {
            Message message = batch.get(i);
            note("batch", topic, result.getMessageQueue().getQueueId(),
                result.getQueueOffset() + i, ids[i], offsetIds[i], message, 0, "-", crc(message));
        }
        return count;
    }

    private void sendDelayed(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = message(someTopic());
            long[] crc = crc(message);
            int level = LEVELS[i % LEVELS.length];
            message.setDelayTimeLevel(level);
            SendResult result = check(producer.send(message, someQueue(message.getTopic())));
            note("delayed", result, message, level, "-", crc);
        }
    }

    private void sendTransactions(int count) throws Exception {
        for (int i = 0; i < count; i++) {
            String fate = FATES[i % FATES.length];
            Message message = message(someTopic());
            if ("pending".equals(fate)) {
                message.putUserProperty("fate", FATES[i / FATES.length % 2]);
                if (message.getBody().length > BODY_MAX) {
                    // 4.5.1 copies a compressed body unpacked, but still calls it compressed.
                    message.setBody(Arrays.copyOf(message.getBody(), BODY_MAX));
                }
            }
            long[] crc = crc(message);
            SendResult result = check(producer.sendMessageInTransaction(message, fate));
            note("half", result, message, 0, fate, crc);
        }
    }

    private void sendUntilFailure() throws IOException {
        shared = "-s";
        try {
            while (true) {
                Message message = message(someTopic());
                long[] crc = crc(message);
                SendResult result = check(producer.send(message, someQueue(message.getTopic())));
                note("last", result, message, 0, "-", crc);
                flush();
            }
        } catch (Exception end) {
            System.err.println("the last send failed: " + end);
        }
    }

    private Message message(String topic) {
        int n = number++;
        Message message = new Message(topic, body(n));
        message.setFlag(n);
        String tag = TAGS[n % TAGS.length];
        if (tag != null) {
            message.setTags(tag);
        }
        if (n % 4 != 0) {
            // One key of its own, one shared by many, and sometimes one beyond ASCII.
            StringJoiner keys = new StringJoiner(" ");
            keys.add(name + "-k" + n).add(name + shared + n % GROUPS);
            if (n % 7 == 0) {
                keys.add(name + "-schlüssel-鍵-😀-" + n % 97);
            }
            message.setKeys(keys.toString());
        }
        if (n % 3 == 0) {
            message.putUserProperty("n", Integer.toString(n));
            message.putUserProperty("text", TEXT);
        }
        return message;
    }

    /** Mostly short; one in two hundred is long enough for the client to compress it. */
    private byte[] body(int n) {
        int size = n % 200 == 0 ? 5_000 + random.nextInt(5_000) : 1 + random.nextInt(250);
        byte[] body = new byte[size];
        random.nextBytes(body);
        if (n % 400 == 0) {
            Arrays.fill(body, size / 8, size, (byte) 'x');
        }
        return body;
    }

    private String someTopic() {
        return topics[random.nextInt(topics.length)];
    }

    private MessageQueue someQueue(String topic) {
        return new MessageQueue(topic, brokerName, random.nextInt(queues));
    }

    private void drain() throws Exception {
        if (!permits.tryAcquire(IN_FLIGHT, SEND_TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("answers missing after the last send");
        }
        permits.release(IN_FLIGHT);
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
    }

    private static SendResult check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result);
        }
        return result;
    }

    private void note(
        String kind, SendResult result, Message message, int level, String fate, long[] crc
    ) throws IOException {
        note(kind, message.getTopic(), result.getMessageQueue().getQueueId(),
            result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId(), message, level,
            fate, crc);
    }

    private void note(
        String kind, String topic, int queue, long offset, String id, String offsetId,
        Message message, int level, String fate, long[] crc
    ) throws IOException {
        String line = String.join("\t", kind, topic, Integer.toString(queue),
            Long.toString(offset), id, offsetId, Long.toString(System.currentTimeMillis()),
            Integer.toString(level), fate, Long.toString(crc[0]), Long.toString(crc[1]),
            properties(message));
        synchronized (ledger) {
            ledger.write(line);
            ledger.write('\n');
        }
    }

    private void flush() throws IOException {
        synchronized (ledger) {
            ledger.flush();
        }
    }

    private static long[] crc(Message message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        return new long[] {crc.getValue(), message.getBody().length};
    }

    private static String properties(Message message) {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, String> entry : message.getProperties().entrySet()) {
            text.append(entry.getKey()).append('\1').append(entry.getValue()).append('\2');
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : text.toString().getBytes(StandardCharsets.UTF_8)) {
            hex.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
        }
        return hex.toString();
    }

    /** Each half message gets the fate that came with it. */
    private static class Fates implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object fate) {
            return state((String) fate);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return state(message.getUserProperty("fate"));
        }

        private static LocalTransactionState state(String fate) {
            if ("commit".equals(fate)) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            if ("rollback".equals(fate)) {
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }
            return LocalTransactionState.UNKNOW;
        }
    }
}
