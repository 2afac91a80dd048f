"""sources: all source files of this repository that some targets are built from, for tests that read code. Builds nothing."""

_Sources = provider(fields = ["files"])

_EDGES = ["deps", "actual", "srcs", "hdrs"]

def _of_attribute(rule, name):
    value = getattr(rule.attr, name, None)
    return value if type(value) == "list" else [value] if value else []

def _collect_impl(target, ctx):
    files = [
        file
        for attribute in ["srcs", "hdrs"]
        for file in getattr(ctx.rule.files, attribute, [])
        if file.is_source and file.extension in ["cc", "h", "cu", "cuh"]
    ]
    below = [
        edge[_Sources].files
        for attribute in _EDGES
        for edge in _of_attribute(ctx.rule, attribute)
        if type(edge) == "Target" and _Sources in edge
    ]
    return [_Sources(files = depset(files, transitive = below))]

_collect = aspect(implementation = _collect_impl, attr_aspects = _EDGES)

def _sources_impl(ctx):
    files = depset(transitive = [target[_Sources].files for target in ctx.attr.targets])
    return [DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files))]

sources = rule(
    implementation = _sources_impl,
    attrs = {"targets": attr.label_list(aspects = [_collect])},
)
