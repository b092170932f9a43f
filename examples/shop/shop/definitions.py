"""All services, for what looks at them from the outside."""

from shop.coupons.service import COUPONS
from shop.goods.service import GOODS
from shop.journal.service import JOURNAL
from shop.orders.service import ORDERS
from shop.parts import Definition
from shop.payments.service import PAYMENTS
from shop.users.service import USERS

DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (GOODS, COUPONS, USERS, ORDERS, PAYMENTS, JOURNAL)
}
