"""A real cluster and ours with the same data, asked through the official admin client.

What it is told becomes comparable: times, addresses and counters are masked, an error is its class
and code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import JavaError, Sent, call
from tests.interop.jvm import JavaClient

from pymq.protocol import fastjson

VERSION: Final = "5.3.3"
TOPIC, GROUP, WRITERS = "shown", "showing", "writing"
COUNT: Final = 8
#: Values that differ between any two runs.
MASKED: Final = re.compile(
    r"(?i).*(time|timestamp|timestampstr|addr|version|counter|clientid|tps|rt|size|offset_?id|msgid"
    r"|(born|store)host\w*|commitlogoffset|mills|uniq_key)$"
)
_NAMES: Final = re.compile(r"127\.0\.0\.1:\d+|interop-\d+-\d+|@[0-9a-f]{5,8}$")


@dataclass(frozen=True, slots=True)
class Site:
    """One of the two clusters.

    Attributes:
        admin: connected to it.
        name_server: its ``host:port``.
        broker: ``host:port`` of its only broker.
        is_real: is this RocketMQ?
        consumer: the member of ``GROUP``, running.
        sent: the messages of ``TOPIC``.
    """

    admin: JavaAdmin
    name_server: str
    broker: str
    is_real: bool
    consumer: JavaPushConsumer
    sent: list[Sent]

    @property
    def client(self) -> JavaClient:
        """The JVM that all clients here run in."""
        return self.admin.client

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a call of the admin client says, comparable; an error as its code.

        ``{broker}`` in a string is the site's.
        """
        given = [
            one.replace("{broker}", self.broker) if isinstance(one, str) else one
            for one in arguments
        ]
        try:
            found = call(getattr(self.admin.java, method), *given)
        except JavaError as error:
            return error.class_name, error.response_code
        to_json = self.client.jvm.org.apache.rocketmq.remoting.protocol.RemotingSerializable.toJson
        text = to_json(found, False)
        return comparable(fastjson.parse(text)) if text else text


def comparable(value: Any) -> Any:
    """Return a parsed answer without order and without what differs between any two runs."""
    if isinstance(value, fastjson.ObjectMap):
        # When a group first commits an offset of its retry topic is a matter of time.
        pairs = [
            [comparable(key), comparable(member)]
            for key, member in value.pairs
            if key.get("topic") != f"%RETRY%{GROUP}"
        ]
        return sorted(pairs, key=json.dumps)
    if isinstance(value, dict):
        return {
            _NAMES.sub("<name>", key): ("..." if MASKED.fullmatch(key) else comparable(member))
            for key, member in sorted(value.items())
        }
    if isinstance(value, list):
        # 5.3.3 takes a topic for one of its own consumer groups (ConsumerManager.registerConsumer).
        return sorted((comparable(one) for one in value if one != TOPIC), key=json.dumps)
    if isinstance(value, str):
        return _NAMES.sub("<name>", value)
    return value


@contextmanager
def filled(client: JavaClient, name_server: str, broker: str, *, is_real: bool) -> Iterator[Site]:
    """Have a topic with messages, and a group with one running member that has consumed them."""
    with JavaAdmin(client, name_server) as admin:
        for topic in (TOPIC, f"%RETRY%{GROUP}"):
            admin.create_topic(topic, 2)
        with JavaProducer(client, WRITERS, name_server) as producer:
            sent = [
                producer.send(TOPIC, b"%d" % number, keys="k", queue_id=number % 2)
                for number in range(COUNT)
            ]
        with JavaPushConsumer(client, GROUP, name_server, TOPIC) as consumer:
            consumer.wait_count(COUNT)
            consumer.wait_offsets(COUNT, lambda: admin.committed_count(GROUP, TOPIC))
            yield Site(admin, name_server, broker, is_real, consumer, sent)


#: What is done at a site, step by step: what each step is, and what it said.
Scene: TypeAlias = Callable[[Site], Iterator[tuple[str, Any]]]


def differences(scene: Scene, sites: tuple[Site, Site]) -> dict[str, tuple[Any, Any]]:
    """Play a scene at both sites at the same time; return what was said otherwise, real first."""
    with ThreadPoolExecutor(len(sites)) as pool:
        real, ours = pool.map(lambda site: dict(scene(site)), sites)
    assert list(real) == list(ours)
    return {step: (said, ours[step]) for step, said in real.items() if said != ours[step]}
