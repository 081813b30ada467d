"""TensorBoard's files, read without TensorFlow."""

import struct

from tensorboardX.proto.event_pb2 import Event


def read(folder):
    """All events of the files in a folder."""
    events = []
    for path in folder.glob("events*"):
        content = path.read_bytes()
        while content:  # a record is its length, a checksum of it, the data, and one of these
            (length,) = struct.unpack("<Q", content[:8])
            events.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return events
