"""NixlConnector for a core in a process of its own, which is as patient as the fixture `patient` makes those here."""

from mini_vllm.distributed.kv_transfer.kv_connector.nixl.connector import NixlConnector
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import be_patient

be_patient(None)


class PatientConnector(NixlConnector):
    """As it is."""
