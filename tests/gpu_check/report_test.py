#!/usr/bin/env python3
"""Tests how gpu_check reads recorded output, and the tables that it makes. The outputs have the form that the programs print. Their
figures are invented: no GPU has run them."""

import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "gpu_check"))
sys.dont_write_bytecode = True

import report  # noqa: E402


def recorded(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


class LastLine(unittest.TestCase):
    def test_is_the_error_and_not_the_advice_behind_it(self):
        self.assertEqual(report.last_line(recorded("pytorch_failure.txt")),
                         "torch._inductor.exc.InductorError: RuntimeError: Cannot find a working triton installation")

    def test_is_the_jobs_reason_and_not_where_its_logs_are(self):
        self.assertEqual(report.last_line(recorded("run_failure.txt")),
                         "WORKER_FAILED: worker-0: step 3: an illegal memory access was encountered")

    def test_of_any_other_program_is_its_last(self):
        self.assertEqual(report.last_line("one\ntwo\n\n"), "two")
        self.assertEqual(report.last_line(""), "it said nothing")


class Tests(unittest.TestCase):
    FAILED = "All/OperatorTest.EveryOutputEqualsTheReference/Linear_matrix_products_3"
    CRASHED = "All/OperatorTest.ADimensionOfZeroIsRefused/Lstm_recurrences_2"

    def test_the_list_has_whole_names_and_nothing_of_main(self):
        self.assertEqual(report.listed_tests(recorded("gtest_list.txt")), [
            "TestedDeviceTest.IsThere", "TiesTest.ReluIsFlatAtZero", "TiesTest.WindowsThatOverlapAddUp",
            "All/OperatorTest.EveryOutputEqualsTheReference/Linear_matrix_products_0",
            "All/OperatorTest.ADimensionOfZeroIsRefused/Reshape_moves_0"])

    def test_results_say_why_and_which_test_ended_the_program(self):
        results, unfinished = report.gtest_results(recorded("gtest_output.txt"))
        self.assertEqual(unfinished, self.CRASHED)
        self.assertEqual({name: status for name, (status, _) in results.items()},
                         {"TiesTest.ReluIsFlatAtZero": "passed", "TiesTest.WindowsThatOverlapAddUp": "passed",
                          "CudaExecutorTest.RepeatsToTheBit": "skipped", self.FAILED: "failed"})
        self.assertEqual(results["CudaExecutorTest.RepeatsToTheBit"][1],
                         "cuda_executor_test.cc:119: Skipped no GPU is visible (CUDA driver version is insufficient for "
                         "CUDA runtime version)")
        self.assertTrue(results[self.FAILED][1].startswith("operator_test.cc:142: Failure Expected: (error) <= (bound), actual: 0.25"))

    def test_a_program_that_ended_well_left_nothing_unfinished(self):
        whole = recorded("gtest_output.txt").replace("*** Check failure stack trace: ***", f"[       OK ] {self.CRASHED} (1 ms)")
        self.assertIsNone(report.gtest_results(whole)[1])

    def test_a_later_failure_of_the_same_name_counts(self):
        twice = "[ RUN      ] A.B\n[ RUN      ] A.B\n[       OK ] A.B (1 ms)\n[  FAILED  ] A.B (2 ms)\n"
        self.assertEqual(report.gtest_results(twice)[0]["A.B"][0], "failed")

    def test_failures_that_only_repeat_the_devices_error_do_not_count(self):
        fault = "Failure an illegal memory access was encountered"
        results = {"A": ("failed", "0.1 vs 0.2"), "B": ("failed", fault), "C": ("failed", fault), "D": ("passed", ""),
                   "E": ("failed", "0.1 vs 0.2")}
        self.assertEqual(list(report.until_the_device_fails(results)), ["A", "B", "D"])

    def test_the_table_names_every_test_that_did_not_pass(self):
        results, unfinished = report.gtest_results(recorded("gtest_output.txt"))
        results[unfinished] = (report.CRASHED, "SIGABRT; its last line: *** Check failure stack trace: ***")
        results["TiesTest.Late"] = (report.MISSED, "")
        table = report.tests_table(results)
        self.assertEqual(table.splitlines()[0], "2 passed, 1 failed, 1 crashed, 1 skipped, 1 not reached")
        self.assertIn(f"| {self.CRASHED} | crashed | SIGABRT", table)
        self.assertIn("| CudaExecutorTest.RepeatsToTheBit | skipped |", table)
        self.assertIn("output 0 / element 7 |", table)  # a bar would end the cell
        self.assertNotIn("ReluIsFlatAtZero", table)


class Models(unittest.TestCase):
    def rows(self):
        return [{"side": "Muster", "variant": "autotuned, resident", **json.loads(recorded("bench_model.json"))},
                {"side": "PyTorch", "variant": "torch.compile", **json.loads(recorded("pytorch_model.json"))}]

    def test_the_table_compares_with_torch_compile(self):
        table = report.models_table("GPT-2", 32, "tokens", 1024, self.rows())
        self.assertIn("| Muster | autotuned, resident | 80.00 | 79.00 | 409,600 | 1.10 | 350.0 | 50 % |", table)
        self.assertIn("| PyTorch | torch.compile | 88.00 | 87.00 | 372,364 | 1.00 | 318.2 | 45 % |", table)

    def test_one_sides_failure_is_a_row(self):
        rows = self.rows()
        rows[1] = {"side": "PyTorch", "variant": "torch.compile", "error": report.last_line(recorded("pytorch_failure.txt"))}
        table = report.models_table("GPT-2", 32, "tokens", 1024, rows)
        self.assertIn("| PyTorch | torch.compile | failed: torch._inductor.exc.InductorError: RuntimeError: Cannot find", table)
        self.assertIn("| Muster | autotuned, resident | 80.00 | 79.00 | 409,600 |  | 350.0 | 50 % |", table)
        rows = [{"side": "Muster", "variant": "autotuned, resident", "error": "SIGSEGV"}, self.rows()[1]]
        table = report.models_table("GPT-2", 32, "tokens", 1024, rows)
        self.assertIn("| Muster | autotuned, resident | failed: SIGSEGV |", table)
        self.assertIn("| PyTorch | torch.compile | 88.00 | 87.00 | 372,364 | 1.00 |  |  |", table)

    def test_the_kernels_of_attention_are_named_below_the_table(self):
        chosen = "attention bf16 32x12x1024x64, causal: cuDNN 9.19.0, engine 2 and engine 6, as the own kernels to 1.2 roundings"
        log = f"I1123 01:02:03.4 56 attention_choice.cc:324] {chosen}\n" * 2 + "I1123 01:02:03.5 56 image.cc:197] convolution c: algorithm 1\n"
        self.assertEqual(report.attention_choices(log), [chosen])
        refused = "attention bf16 1x2x128x8: own kernels; cuDNN 9.19.0's: a row of y differs by 9 roundings"
        self.assertEqual(report.attention_choices(f"W1123 01:02:03.4 56 attention_choice.cc:349] {refused}\n"), [refused])
        rows = self.rows()
        rows[0]["attention"] = [chosen]
        self.assertTrue(report.models_table("GPT-2", 32, "tokens", 1024, rows).endswith(f" |\n\n- autotuned, resident: {chosen}\n"))

    def test_a_rank_is_compared_with_the_whole(self):
        rows = [{"degree": 1, "step_seconds": 0.1}, {"degree": 2, "step_seconds": 0.06}, {"degree": 4, "error": "SIGSEGV"}]
        table = report.ranks_table("GPT", 8, rows)
        self.assertIn("| 1 | 100.00 | 1.000 | 1.00 |\n| 2 | 60.00 | 0.600 | 1.20 |\n| 4 | failed: SIGSEGV | | |\n", table)

    def test_rounds_give_their_median_and_a_failed_one_does_not_count(self):
        row = {"side": "Muster", "variant": "v"}
        rounds = [[{**row, "step_seconds": s, "fastest_step_seconds": s / 2}] for s in (5.0, 1.0, 3.0)]
        self.assertEqual(report.median_rows(rounds), [{**row, "step_seconds": 3.0, "fastest_step_seconds": 0.5}])
        rounds[0] = [{**row, "error": "x"}]
        self.assertEqual(report.median_rows(rounds)[0]["step_seconds"], 2.0)
        self.assertEqual(report.median_rows([rounds[0], rounds[0]]), [{**row, "error": "x"}])


class Profile(unittest.TestCase):
    def test_ours_is_by_op_and_node_theirs_by_kernel(self):
        table = report.profile_table("GPT-2", json.loads(recorded("bench_profile.json")), json.loads(recorded("pytorch_model.json")))
        self.assertIn("Muster: 8.000 ms in 3 nodes", table)
        self.assertIn("| Linear | 2 | 7.000 | 87.5 % |", table)
        self.assertIn("| blocks.0.mlp | Linear | 5.000 | bf16[8, 64], bf16[64, 64] -> bf16[8, 64] |", table)
        self.assertLess(table.index("blocks.0.mlp"), table.index("| head |"))
        self.assertIn("PyTorch: 50.000 ms of kernels in a step", table)
        self.assertIn("| triton_poi_fused_gelu_3 | 12 | 10.000 | 20.0 % |", table)

    def test_kernels_of_a_step_are_the_mean_of_the_last_steps(self):
        # Each step takes 1 ms. Kernel "a" runs from 0 to 0.4 ms, kernel "b" from 0.2 to 0.6 ms. Kernel "tune" ends before the first step.
        lines = ["0\t900000\t1\ttune"]
        for step in range(12):
            start = 10_000_000 + step * 1_000_000
            lines += [f"{start + 200_000}\t400000\t2\tb<x, y>", f"{start}\t400000\t1\ta"]
        # The window of ten steps ends with the last kernel, 0.4 ms before the end of its step. So it has the kernels of this step and
        # of the nine steps before it.
        steady = report.kernels_of_a_step("\n".join(lines) + "\n", 1e-3, steps=10)
        self.assertEqual([k["kernel"] for k in steady["kernels"]], ["a", "b<x, y>"])
        for kernel in steady["kernels"]:
            self.assertAlmostEqual(kernel["seconds"], 0.4e-3)
            self.assertEqual(kernel["calls"], 1.0)
        self.assertAlmostEqual(steady["busy"], 0.6e-3)
        self.assertEqual(report.kernels_of_a_step("", 1e-3), {"busy": 0.0, "kernels": []})

        ours = {**json.loads(recorded("bench_profile.json")), "kernels": steady}
        table = report.profile_table("GPT-2", ours, {"error": "x"})
        self.assertIn("Muster: 0.800 ms of kernels in a step, in which a kernel ran for 0.600 ms", table)
        self.assertIn("| b<x, y> | 1 | 0.400 | 50.0 % |", table)

    def test_one_sides_failure_does_not_hide_the_other(self):
        table = report.profile_table("GPT-2", {"error": "out of memory"}, json.loads(recorded("pytorch_model.json")))
        self.assertIn("Muster failed: out of memory", table)
        self.assertIn("| triton_poi_fused_gelu_3 |", table)


class Jobs(unittest.TestCase):
    def test_a_steady_step_is_between_two_samples_of_a_workers_metrics(self):
        first, last = (report.worker_totals(recorded(f"worker_metrics_{i}.txt")) for i in (1, 2))
        self.assertEqual(first["steps"], 12565)
        self.assertAlmostEqual(first["seconds"], 2.288292236)
        self.assertAlmostEqual(first["wait"], 0.027104242)
        step = report.steady_step(first, last)
        self.assertEqual(step["steps"], last["steps"] - first["steps"])
        self.assertAlmostEqual(step["step_seconds"], (last["seconds"] - first["seconds"]) / step["steps"])
        self.assertAlmostEqual(step["data_seconds"], (last["data"] - first["data"]) / step["steps"])

    def test_without_a_step_there_is_no_sample_and_no_mean(self):
        self.assertIsNone(report.worker_totals("muster_worker_step_duration_seconds_count 0\nmuster_worker_step_duration_seconds_sum 0\n"))
        self.assertIsNone(report.worker_totals("<html>not these metrics</html>"))
        first = report.worker_totals(recorded("worker_metrics_1.txt"))
        with self.assertRaises(ValueError):
            report.steady_step(first, first)

    def test_the_exchange_costs_what_neither_computing_nor_input_takes(self):
        model = {"title": "GPT-2", "batch": 32, "unit": "tokens", "units_per_sample": 1024}
        job = {"step_seconds": 0.128, "wait_seconds": 0.02, "data_seconds": 0.008, "compute_seconds": 0.1}
        table = report.jobs_table([{**model, "alone": {"step_seconds": 0.1}, "job": job},
                                   {**model, "alone": {"error": "no kernel"}, "job": job},
                                   {**model, "alone": {"step_seconds": 0.1}, "job": {"error": report.last_line(recorded("run_failure.txt"))}}])
        rows = table.splitlines()[2:]
        self.assertEqual(rows[0], "| GPT-2, 32 | 100.0 | 128.0 | 20.0 | 20.0 | 8.0 | 256,000 tokens/s |")
        self.assertEqual(rows[1], "| GPT-2, 32 | failed: no kernel | 128.0 |  | 20.0 | 8.0 | 256,000 tokens/s |")
        self.assertIn("| failed: WORKER_FAILED: worker-0: step 3: an illegal memory access", rows[2])


if __name__ == "__main__":
    unittest.main()
