#!/usr/bin/env python3
"""Checks a trace with Perfetto's own message classes: `pip install perfetto`, then `check_perfetto.py FILE`.

Fails if a field is unknown, a slice does not end, a flow ends twice or never, or a track has no descriptor.
"""

import collections
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto


def unknown_fields(message):
    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            parts = value if hasattr(value, "__len__") else [value]
            found += sum(unknown_fields(part) for part in parts)
    return found


def main(path):
    trace = proto.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    assert unknown_fields(trace) == 0, "the trace has fields that Perfetto does not know"
    tracks = {p.track_descriptor.uuid for p in trace.packet if p.HasField("track_descriptor")}
    kinds = collections.Counter()
    depth = collections.Counter()
    begun, ended = set(), collections.Counter()
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        kind = proto.TrackEvent.Type.Name(event.type)
        kinds[kind] += 1
        assert event.track_uuid in tracks, f"track {event.track_uuid} has no descriptor"
        depth[event.track_uuid] += {"TYPE_SLICE_BEGIN": 1, "TYPE_SLICE_END": -1}.get(kind, 0)
        assert 0 <= depth[event.track_uuid] <= 1, f"slices overlap on track {event.track_uuid}"
        begun.update(event.flow_ids)
        ended.update(event.terminating_flow_ids)
    assert not any(depth.values()), "a slice does not end"
    assert all(count == 1 and flow in begun for flow, count in ended.items()), "a flow ends twice or without a start"
    print(f"{len(trace.packet)} packets, {len(tracks)} tracks, {len(ended)} flows, {dict(kinds)}")


if __name__ == "__main__":
    main(sys.argv[1])
