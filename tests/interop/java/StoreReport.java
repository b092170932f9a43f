// What a broker serves of its store, as the official client sees it, as text to be compared.
//
// Run by tests/interop/golden.py as a single source file, with any client from 4.5.1 to 5.3.3:
//   java -cp '<client jars>/*' StoreReport.java <name server> <broker name> <questions> <report>
//
// Questions and answers are lines of fields separated by tabs; times in ms.
//   queue <topic> <queue id>             bounds <topic> <queue id> <first> <end>, and a message
//                                        line for each message, pulled from the first on
//   time <topic> <queue id> <time>       the question, then the offset found for the time
//   earliest <topic> <queue id>          the question, then the store time of the oldest message
//   key <topic> <key> <most> <begin> <end>   the question, then the physical offsets of the
//                                        messages found, ascending, by commas; "none" for none
//   unique <topic> <message id>          the question, then the message's physical offset
//   view <topic> <offset message id>     the question, then the message line
// A message line has: message, topic, queue id, queue offset, physical offset, stored size, born
// and store time, born and store host, system flag (without the bit of a compressed body, which
// some clients clear), flag, times reconsumed, offset of the half message, CRC32 and bytes of the
// body as the client gives it, message id, properties in hex (name 0x01 value 0x02 ..., by name,
// without what the client itself adds to a pulled message).

import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.exception.RemotingTimeoutException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

public class StoreReport {
    private static final int PULL_COUNT = 256;
    private static final int ATTEMPTS = 5;
    private static final int NO_MESSAGE = 208;  // ResponseCode.NO_MESSAGE of the 4.x clients

    private final DefaultMQPullConsumer consumer;
    private final DefaultMQAdminExt admin;
    private final String brokerName;
    /** The answer to the present question. */
    private final List<String> lines = new ArrayList<>();

    private StoreReport(String nameServer, String brokerName) throws Exception {
        this.brokerName = brokerName;
        consumer = new DefaultMQPullConsumer("report");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("report-consumer");
        consumer.start();
        admin = new DefaultMQAdminExt(60_000);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("report-admin");
        admin.start();
    }

    public static void main(String[] args) {
        // Not shutdown(): it can take seconds. Without a halt, the client's threads go on.
        try {
            answerAll(args);
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void answerAll(String[] args) throws Exception {
        StoreReport report = new StoreReport(args[0], args[1]);
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(args[3]), StandardCharsets.UTF_8)) {
            for (String question : Files.readAllLines(Path.of(args[2]), StandardCharsets.UTF_8)) {
                report.answerWithRetries(question);
                for (String line : report.lines) {
                    out.write(line);
                    out.write('\n');
                }
            }
        }
    }

    /** On a busy machine even a name server does not always answer within the client's limit. */
    private void answerWithRetries(String question) throws Exception {
        for (int attempt = 1; ; attempt++) {
            lines.clear();
            try {
                answer(question, question.split("\t"));
                return;
            } catch (Exception error) {
                if (attempt == ATTEMPTS || !isTimeout(error)) {
                    throw new IllegalStateException("question: " + question, error);
                }
            }
        }
    }

    private static boolean isTimeout(Throwable error) {
        return error != null
            && (error instanceof RemotingTimeoutException || isTimeout(error.getCause()));
    }

    private void answer(String question, String[] fields) throws Exception {
        switch (fields[0]) {
            case "queue":
                pullAll(queue(fields));
                break;
            case "time":
                write(question, consumer.searchOffset(queue(fields), Long.parseLong(fields[3])));
                break;
            case "earliest":
                write(question, consumer.earliestMsgStoreTime(queue(fields)));
                break;
            case "key":
                write(question, byKey(fields));
                break;
            case "unique":
                write(question, byUniqueKey(fields[1], fields[2]));
                break;
            case "view":
                write(question, line(admin.viewMessage(fields[1], fields[2])));
                break;
            default:
                throw new IllegalArgumentException("no such question");
        }
    }

    private MessageQueue queue(String[] fields) {
        return new MessageQueue(fields[1], brokerName, Integer.parseInt(fields[2]));
    }

    private void pullAll(MessageQueue queue) throws Exception {
        long first = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        write("bounds\t" + queue.getTopic() + "\t" + queue.getQueueId(), first + "\t" + end);
        long offset = first;
        while (offset < end) {
            PullResult result = consumer.pull(queue, "*", offset, PULL_COUNT);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException("at offset " + offset + ": " + result);
            }
            for (MessageExt message : result.getMsgFoundList()) {
                lines.add(line(message));
            }
            offset = result.getNextBeginOffset();
        }
    }

    private String byKey(String[] fields) throws Exception {
        TreeSet<Long> offsets = new TreeSet<>();
        try {
            for (MessageExt message : admin.queryMessage(fields[1], fields[2],
                Integer.parseInt(fields[3]), Long.parseLong(fields[4]), Long.parseLong(fields[5])
            ).getMessageList()) {
                offsets.add(message.getCommitLogOffset());
            }
        } catch (MQClientException error) {
            if (error.getResponseCode() != NO_MESSAGE) {
                throw error;
            }
            return "none";
        }
        StringJoiner joined = new StringJoiner(",");
        for (long offset : offsets) {
            joined.add(Long.toString(offset));
        }
        return joined.toString();
    }

    private String byUniqueKey(String topic, String id) throws Exception {
        try {
            MessageExt found =
                consumer.getDefaultMQPullConsumerImpl().queryMessageByUniqKey(topic, id);
            return found == null ? "none" : Long.toString(found.getCommitLogOffset());
        } catch (MQClientException error) {
            if (error.getResponseCode() != NO_MESSAGE) {
                throw error;
            }
            return "none";
        }
    }

    private void write(String question, Object answer) {
        lines.add(question + "\t" + answer);
    }

    private static String line(MessageExt message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        StringJoiner line = new StringJoiner("\t");
        line.add("message").add(message.getTopic());
        line.add(Integer.toString(message.getQueueId()));
        line.add(Long.toString(message.getQueueOffset()));
        line.add(Long.toString(message.getCommitLogOffset()));
        line.add(Integer.toString(message.getStoreSize()));
        line.add(Long.toString(message.getBornTimestamp()));
        line.add(Long.toString(message.getStoreTimestamp()));
        line.add(message.getBornHost().toString()).add(message.getStoreHost().toString());
        line.add(Integer.toString(message.getSysFlag() & ~MessageSysFlag.COMPRESSED_FLAG));
        line.add(Integer.toString(message.getFlag()));
        line.add(Integer.toString(message.getReconsumeTimes()));
        line.add(Long.toString(message.getPreparedTransactionOffset()));
        line.add(Long.toString(crc.getValue()));
        line.add(Integer.toString(message.getBody().length));
        line.add(message.getMsgId());
        return line.add(properties(message)).toString();
    }

    private static String properties(MessageExt message) {
        TreeMap<String, String> sorted = new TreeMap<>(message.getProperties());
        sorted.remove("MIN_OFFSET");
        sorted.remove("MAX_OFFSET");
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, String> entry : sorted.entrySet()) {
            text.append(entry.getKey()).append('\1').append(entry.getValue()).append('\2');
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : text.toString().getBytes(StandardCharsets.UTF_8)) {
            hex.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
        }
        return hex.toString();
    }
}
