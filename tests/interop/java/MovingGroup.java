// Two official producers, and consumers of one group that join and leave while messages flow.
//
// Run by tests/interop/test_moving_group.py as a single source file:
//   java -cp '<client jars>/*' MovingGroup.java <name server> <topic> <group> <count> <deliveries>
//
// The messages are numbered. Each delivery is a line of the file:
//   <number> <consumer> <queue id> <queue offset> <milliseconds since the start>
// It ends when every number was delivered, or none has come for two minutes.

import java.io.PrintWriter;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.BitSet;
import java.util.Deque;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class MovingGroup {
    private static final int PRODUCERS = 2;
    private static final int IN_FLIGHT = 50;
    private static final long QUIET_MS = 120_000;
    private static final long SPAN_MS = 20_000;
    /** When a consumer joins, or the one that is there longest leaves; the first once it is busy. */
    private static final long[] JOIN_MS = {0, 2_000, 5_000, 11_000};
    private static final long[] LEAVE_MS = {8_000, 14_000};

    private final String nameServer;
    private final String topic;
    private final String group;
    private final int count;
    private final PrintWriter deliveries;
    private final long begunMs = System.currentTimeMillis();
    private final BitSet seen = new BitSet();
    /** The last tenth of the messages is for those that stay, once they have their queues. */
    private final CountDownLatch settled = new CountDownLatch(1);
    private volatile boolean isFirstBusy;
    private final AtomicInteger failed = new AtomicInteger();
    private final Deque<DefaultMQPushConsumer> consumers = new ArrayDeque<>();
    private volatile long lastMs = begunMs;
    private int joined;

    private MovingGroup(String[] arguments) throws Exception {
        nameServer = arguments[0];
        topic = arguments[1];
        group = arguments[2];
        count = Integer.parseInt(arguments[3]);
        deliveries = new PrintWriter(arguments[4], StandardCharsets.UTF_8);
    }

    private synchronized void delivered(int consumer, MessageExt message) {
        int number = Integer.parseInt(new String(message.getBody(), StandardCharsets.US_ASCII));
        lastMs = System.currentTimeMillis();
        seen.set(number);
        isFirstBusy |= consumer == 0;
        deliveries.printf("%d %d %d %d %d%n", number, consumer, message.getQueueId(),
            message.getQueueOffset(), lastMs - begunMs);
    }

    private synchronized int seenCount() {
        return seen.cardinality();
    }

    private boolean hasQueues(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().anyMatch(queue -> queue.getTopic().equals(topic));
    }

    /** Give a client half a minute for each answer; those before 4.9 cannot be told. */
    private static void makePatient(Object client) throws ReflectiveOperationException {
        for (Method method : client.getClass().getMethods()) {
            if (method.getName().equals("setMqClientApiTimeout")) {
                method.invoke(client, 30_000);
            }
        }
    }

    private void join() throws Exception {
        int number = joined++;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("member-" + number);
        makePatient(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(8);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                delivered(number, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.add(consumer);
    }

    private void send(int producerNumber) {
        try {
            DefaultMQProducer producer = new DefaultMQProducer("moving-" + producerNumber);
            producer.setNamesrvAddr(nameServer);
            producer.setInstanceName("producer-" + producerNumber);
            makePatient(producer);
            producer.setSendMsgTimeout(30_000);
            producer.start();
            Semaphore room = new Semaphore(IN_FLIGHT);
            for (int number = producerNumber; number < count; number += PRODUCERS) {
                // As long as members come and go.
                long dueMs = begunMs + SPAN_MS * number / count;
                while (System.currentTimeMillis() < dueMs) {
                    Thread.sleep(1);
                }
                if (number >= count / 10 * 9) {
                    settled.await();
                }
                room.acquire();
                byte[] body = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
                producer.send(new Message(topic, body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        error.printStackTrace();
                        failed.incrementAndGet();
                        room.release();
                    }
                });
            }
            room.acquire(IN_FLIGHT);
            producer.shutdown();
        } catch (Exception error) {
            error.printStackTrace();
            failed.incrementAndGet();
        }
    }

    private void run() throws Exception {
        join();
        Thread[] senders = new Thread[PRODUCERS];
        for (int number = 0; number < PRODUCERS; number++) {
            int own = number;
            senders[number] = new Thread(() -> send(own));
            senders[number].start();
        }
        int joins = 1;
        int leaves = 0;
        while (seenCount() < count && System.currentTimeMillis() - lastMs < QUIET_MS) {
            long nowMs = System.currentTimeMillis() - begunMs;
            if (joins < JOIN_MS.length && nowMs >= JOIN_MS[joins]) {
                joins++;
                join();
            }
            if (leaves < LEAVE_MS.length && nowMs >= LEAVE_MS[leaves]
                && isFirstBusy) {
                leaves++;
                consumers.remove().shutdown();
            }
            if (joins == JOIN_MS.length && leaves == LEAVE_MS.length
                && consumers.stream().allMatch(this::hasQueues)) {
                settled.countDown();
            }
            Thread.sleep(5);
        }
        Thread.sleep(3000); // for what comes twice
        while (!consumers.isEmpty()) {
            consumers.remove().shutdown();
        }
        deliveries.close();
        System.out.printf("failed %d joined %d left %d%n", failed.get(), joined, leaves);
    }

    public static void main(String[] arguments) throws Exception {
        new MovingGroup(arguments).run();
        System.exit(0);
    }
}
