// Drives the official Go client (remoting protocol) against a cluster, and reports what it saw.
//
//	go run . NAME_SERVER TOPIC COMMAND...
//
// Each command plays one scene; the report is one JSON object, the scenes' results by name.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	messages = 12
	patience = 120 * time.Second
)

// site is where the scenes play.
type site struct {
	servers primitive.NamesrvAddr
	topic   string
}

// inbox holds what a consumer got.
type inbox struct {
	mutex sync.Mutex
	all   []*primitive.MessageExt
}

func (box *inbox) add(message *primitive.MessageExt) {
	box.mutex.Lock()
	defer box.mutex.Unlock()
	box.all = append(box.all, message)
}

func (box *inbox) copied() []*primitive.MessageExt {
	box.mutex.Lock()
	defer box.mutex.Unlock()
	return append([]*primitive.MessageExt{}, box.all...)
}

// wait returns when there are so many, or fails.
func (box *inbox) wait(count int) []*primitive.MessageExt {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		all := box.copied()
		if len(all) >= count {
			return all
		}
		if time.Now().After(end) {
			fail("%d of %d messages came within %s", len(all), count, patience)
		}
	}
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail("%s", err)
	}
}

func bodies(all []*primitive.MessageExt) []string {
	texts := []string{}
	for _, message := range all {
		texts = append(texts, string(message.Body))
	}
	return texts
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

func message(topic string, number int) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(fmt.Sprintf("%02d", number)))
	made.WithTag([]string{"even", "odd"}[number%2])
	made.WithKeys([]string{"key-" + strconv.Itoa(number)})
	made.WithProperty("number", strconv.Itoa(number))
	return made
}

func (s site) options(group string) []producer.Option {
	return []producer.Option{
		producer.WithNameServer(s.servers),
		producer.WithGroupName(group),
		producer.WithInstanceName(group),
		producer.WithSendMsgTimeout(patience),
	}
}

func (s site) producer() rocketmq.Producer {
	made, err := rocketmq.NewProducer(s.options(s.topic + "-p")...)
	check(err)
	check(made.Start())
	return made
}

// push starts a consumer that reads from the first message on.
func (s site) push(
	group string,
	topic string,
	selector consumer.MessageSelector,
	take func(*primitive.MessageExt) consumer.ConsumeResult,
	more ...consumer.Option,
) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithNameServer(s.servers),
		consumer.WithGroupName(group),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	check(err)
	check(made.Subscribe(topic, selector, func(
		_ context.Context, batch ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, one := range batch {
			if result := take(one); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(made.Start())
	return made
}

func (s site) into(box *inbox) func(*primitive.MessageExt) consumer.ConsumeResult {
	return func(one *primitive.MessageExt) consumer.ConsumeResult {
		box.add(one)
		return consumer.ConsumeSuccess
	}
}

// send sends in every way there is, and says where each message went.
func (s site) send() any {
	sender := s.producer()
	defer sender.Shutdown()
	ctx := context.Background()
	ids := []string{}
	for number := 0; number < 6; number++ {
		result, err := sender.SendSync(ctx, message(s.topic, number))
		check(err)
		if result.Status != primitive.SendOK {
			fail("status %d", result.Status)
		}
		ids = append(ids, result.OffsetMsgID)
	}
	result, err := sender.SendSync(
		ctx, message(s.topic, 6), message(s.topic, 7), message(s.topic, 8),
	)
	check(err)
	if result.Status != primitive.SendOK {
		fail("status %d of a batch", result.Status)
	}
	done := make(chan error)
	check(sender.SendAsync(ctx, func(_ context.Context, _ *primitive.SendResult, err error) {
		done <- err
	}, message(s.topic, 9)))
	check(<-done)
	check(sender.SendOneWay(ctx, message(s.topic, 10)))
	long := message(s.topic, 11)
	for len(long.Body) < 10_000 { // it is compressed
		long.Body = append(long.Body, long.Body...)
	}
	_, err = sender.SendSync(ctx, long)
	check(err)
	return ids
}

// read reads everything, half of it by tag, and some by expression.
func (s site) read() any {
	var every, odd, some inbox
	tags := consumer.MessageSelector{Type: consumer.TAG, Expression: "odd"}
	sql := consumer.MessageSelector{Type: consumer.SQL92, Expression: "number BETWEEN 3 AND 5"}
	defer s.push(s.topic+"-all", s.topic, consumer.MessageSelector{}, s.into(&every)).Shutdown()
	defer s.push(s.topic+"-odd", s.topic, tags, s.into(&odd)).Shutdown()
	defer s.push(s.topic+"-sql", s.topic, sql, s.into(&some)).Shutdown()
	all := every.wait(messages)
	long := 0
	keys := []string{}
	for _, one := range all {
		keys = append(keys, one.GetKeys())
		if len(one.Body) > long {
			long = len(one.Body)
		}
	}
	return map[string]any{
		"keys": sorted(keys),
		"long": long,
		"odd":  len(odd.wait(messages / 2)),
		"sql":  sorted(bodies(some.wait(3))),
	}
}

// delay sends a delayed message, and says how late it came.
func (s site) delay() any {
	sender := s.producer()
	defer sender.Shutdown()
	var box inbox
	topic := s.topic + "-delay"
	late := message(topic, 1)
	late.WithDelayTimeLevel(2)
	began := time.Now()
	_, err := sender.SendSync(context.Background(), late)
	check(err)
	defer s.push(topic+"-g", topic, consumer.MessageSelector{}, s.into(&box)).Shutdown()
	box.wait(1)
	return time.Since(began).Seconds()
}

// retry refuses each message twice, and says which attempts came; then once more, to the end.
func (s site) retry() any {
	sender := s.producer()
	defer sender.Shutdown()
	topic := s.topic + "-retry"
	_, err := sender.SendSync(context.Background(), message(topic, 1))
	check(err)
	var box inbox
	taken := s.push(topic+"-g", topic, consumer.MessageSelector{},
		func(one *primitive.MessageExt) consumer.ConsumeResult {
			box.add(one)
			if one.ReconsumeTimes < 2 {
				return consumer.ConsumeRetryLater
			}
			return consumer.ConsumeSuccess
		})
	attempts := []int32{}
	for _, one := range box.wait(3) {
		attempts = append(attempts, one.ReconsumeTimes)
	}
	check(taken.Shutdown())
	return attempts
}

// order sends to queues by key, and reads each queue in order.
func (s site) order() any {
	sender, err := rocketmq.NewProducer(append(
		s.options(s.topic+"-o"), producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)...)
	check(err)
	check(sender.Start())
	defer sender.Shutdown()
	topic := s.topic + "-order"
	for number := 0; number < messages; number++ {
		one := primitive.NewMessage(topic, []byte(fmt.Sprintf("%02d", number)))
		one.WithShardingKey(strconv.Itoa(number % 3))
		_, err = sender.SendSync(context.Background(), one)
		check(err)
	}
	var box inbox
	defer s.push(topic+"-g", topic, consumer.MessageSelector{}, s.into(&box),
		consumer.WithConsumerOrder(true)).Shutdown()
	byKey := map[string][]string{}
	for _, one := range box.wait(messages) {
		key := one.GetShardingKey()
		byKey[key] = append(byKey[key], string(one.Body))
	}
	return byKey
}

// decisions is what becomes of transactional messages: the first digit at once, the other at a check.
type decisions struct{}

func state(digit byte) primitive.LocalTransactionState {
	switch digit {
	case 'c':
		return primitive.CommitMessageState
	case 'r':
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decisions) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return state(one.Body[0])
}

func (decisions) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	return state(one.Body[1])
}

// transact commits, rolls back, and leaves both to a check.
func (s site) transact() any {
	sender, err := rocketmq.NewTransactionProducer(decisions{}, s.options(s.topic+"-t")...)
	check(err)
	check(sender.Start())
	defer sender.Shutdown()
	topic := s.topic + "-transact"
	for _, body := range []string{"c-", "r-", "uc", "ur"} {
		one := primitive.NewMessage(topic, []byte(body))
		_, err = sender.SendMessageInTransaction(context.Background(), one)
		check(err)
	}
	var box inbox
	defer s.push(topic+"-g", topic, consumer.MessageSelector{}, s.into(&box)).Shutdown()
	box.wait(2)
	time.Sleep(2 * time.Second) // for what must not come
	return sorted(bodies(box.copied()))
}

// pull reads queue by queue, and commits.
func (s site) pull() any {
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(s.servers),
		consumer.WithGroupName(s.topic+"-pull"),
		consumer.WithInstance(s.topic+"-pull"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(reader.Subscribe(s.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(reader.Start())
	got := map[string]bool{}
	for end := time.Now().Add(patience); len(got) < messages; {
		if time.Now().After(end) {
			fail("%d messages pulled", len(got))
		}
		request, err := reader.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		for _, one := range request.GetMsgList() {
			got[one.GetKeys()] = true
		}
		reader.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	check(reader.Shutdown())
	return len(got)
}

func main() {
	rlog.SetLogLevel("fatal")
	servers, err := primitive.NewNamesrvAddr(os.Args[1])
	check(err)
	here := site{servers, os.Args[2]}
	scenes := map[string]func() any{
		"send":     here.send,
		"read":     here.read,
		"pull":     here.pull,
		"delay":    here.delay,
		"retry":    here.retry,
		"order":    here.order,
		"transact": here.transact,
	}
	report := map[string]any{}
	for _, name := range os.Args[3:] {
		report[name] = scenes[name]()
	}
	check(json.NewEncoder(os.Stdout).Encode(report))
}
