from tests.support.instances import instance as instance
