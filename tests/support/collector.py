"""An OpenTelemetry collector's gRPC service that keeps what it is sent."""

from concurrent import futures

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """with Collector() as collector: ... collector.address, collector.spans("earl-rollout")"""

    def __init__(self):
        self.received = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(None).wait(10)

    def Export(self, request, context):
        self.received += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, service=""):
        """All of a service, or of all services."""
        return [span for name, span in self.by_service() if service in ("", name)]

    def by_service(self):
        """(service's name, span) of everything."""
        return [
            (_name(one.resource), span)
            for one in self.received
            for scope in one.scope_spans
            for span in scope.spans
        ]


def _name(resource):
    return next(one.value.string_value for one in resource.attributes if one.key == "service.name")
