"""wheel: the wheel of the Python package, the programs and the example jobs, by build_wheel.py."""

def _wheel_impl(ctx):
    # A folder, because the name of the wheel has the version, which a rule cannot know.
    folder = ctx.actions.declare_directory(ctx.label.name)
    programs = [target[DefaultInfo].files_to_run.executable for target in ctx.attr.programs]
    sources = ctx.files.package + ctx.files.examples
    arguments = ctx.actions.args()
    arguments.add("--to", folder.path)
    arguments.add("--programs")
    for target, name in ctx.attr.programs.items():
        arguments.add("%s=%s" % (name, target[DefaultInfo].files_to_run.executable.path))
    arguments.add("--files")
    for file in ctx.files.package:
        arguments.add("%s=%s" % (file.path, file.short_path[len(ctx.label.package) + 1:]))
    for file in ctx.files.examples:
        arguments.add("%s=muster/share/%s" % (file.path, file.short_path))
    ctx.actions.run(
        executable = ctx.file._build_wheel,
        arguments = [arguments],
        inputs = programs + sources + ctx.files._tools,
        outputs = [folder],
        mnemonic = "Wheel",
        progress_message = "Building the wheel",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([folder]), runfiles = ctx.runfiles([folder]))]

wheel = rule(
    implementation = _wheel_impl,
    attrs = {
        "programs": attr.label_keyed_string_dict(mandatory = True, cfg = "target"),
        "package": attr.label_list(allow_files = True),
        "examples": attr.label_list(allow_files = True),
        "_build_wheel": attr.label(default = "//python:build_wheel.py", allow_single_file = True),
        "_tools": attr.label_list(allow_files = True, default = [
            "//:LICENSE",
            "//tools:image_root.sh",
            "//tools:sbom.py",
        ]),
    },
)
