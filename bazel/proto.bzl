"""Protocol buffers and gRPC stubs by Debian's protoc. Messages and services are separate libraries: grpc headers are heavy."""

load("//bazel:cc.bzl", "cc_library")

def proto_cc_library(name, srcs, deps = [], alwayslink = False, visibility = None):
    """Messages of `srcs`. Import paths are relative to the workspace. `alwayslink`: their descriptors are asked for by name."""
    stems = [src[:-len(".proto")] for src in srcs]
    hdrs = [stem + ".pb.h" for stem in stems]
    sources = [stem + ".pb.cc" for stem in stems]
    native.filegroup(
        name = name + "_src",
        srcs = srcs + [dep + "_src" for dep in deps],
        visibility = visibility,
    )
    native.genrule(
        name = name + "_codegen",
        srcs = [":" + name + "_src"],
        outs = hdrs + sources,
        # Renames two variables that every generated source defines, because the sources are compiled as one (cc.bzl).
        cmd = "protoc -I. --cpp_out=$(GENDIR) " + " ".join([native.package_name() + "/" + src for src in srcs]) + "".join([
            " && sed -i -E 's/\\b(schemas|file_default_instances)\\b/\\1_%s/g' $(GENDIR)/%s/%s.pb.cc" % (
                stem.replace("/", "_"),
                native.package_name(),
                stem,
            )
            for stem in stems
        ]),
    )
    cc_library(
        name = name,
        srcs = sources,
        hdrs = hdrs,
        alwayslink = alwayslink,
        visibility = visibility,
        deps = deps + ["@system//:protobuf"],
    )

def grpc_cc_library(name, src, deps, visibility = None):
    """The gRPC services of `src`, whose messages are in `deps`."""
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_codegen",
        srcs = [dep + "_src" for dep in deps],
        outs = [
            stem + ".grpc.pb.cc",
            stem + ".grpc.pb.h",
        ],
        cmd = "protoc -I. --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin " +
              native.package_name() + "/" + src,
    )
    cc_library(
        name = name,
        srcs = [stem + ".grpc.pb.cc"],
        hdrs = [stem + ".grpc.pb.h"],
        visibility = visibility,
        deps = deps + ["@system//:grpc"],
    )
