"""The bed itself: what the fake CUDA does, and that npm's real CUDA backend runs on it.

    python test_fake.py

Programs of npm's need `npm install` in this folder (README.md); without it those tests are
skipped and say so.
"""

import collections
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import bed
import build_fake

FAKE = build_fake.build()
# So slow that nothing ends before the program looks, on a busy machine too.
SLOW = {"FAKE_CUDA_SLOWNESS": 10000}
TOKENS = 24


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Direct(Folder):
    """On a program that records itself: direct.py."""

    def run_program(self, *mistakes, **variables):
        log = self.folder / "log"
        command = [sys.executable, str(bed.HERE / "direct.py"), *mistakes]
        done = subprocess.run(command, env=bed.environment(FAKE, log, **variables), capture_output=True, text=True, timeout=60)
        return done, bed.read_log(log) if log.exists() else []

    def records(self, *mistakes, **variables):
        done, log = self.run_program(*mistakes, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), log

    def test_there_is_a_record_for_each_kernel_in_the_log_and_they_agree(self):
        found, log = self.records()
        kernels = [record for record in found["records"] if record["what"] == "kernel"]
        logged = bed.select(log, "kernel")[:9]
        for record, line in zip(kernels, logged, strict=True):
            for key in ("begin", "end", "correlation", "name", "device", "stream"):
                self.assertEqual(record[key], line[key])
            self.assertEqual(",".join(map(str, record["grid"])), line["grid"])
            self.assertEqual(record["graph"], line.get("graph", 0))
            self.assertEqual(record["node"] & 0xFFFFFFFF, line.get("node", 0))

    def test_nodes_are_counted_while_they_are_captured_and_keep_their_index(self):
        found, _ = self.records()
        self.assertEqual(found["counts"], [1, 2, 3, 4])
        self.assertEqual([node & 0xFFFFFFFF for node in found["created"]], [0, 1, 2, 3, 4] * 2)
        self.assertEqual(found["graph"][1:4], [[0, f"{name}_kernel", 5] for name in ("first", "second", "third")])
        replayed = [r for r in found["records"] if r["graph"] != 0]
        self.assertEqual([r["node"] & 0xFFFFFFFF for r in replayed], [0, 1, 2, 3, 4] * 2)
        self.assertEqual(len({r["graph"] for r in replayed}), 1, "an update keeps the identifier")

    def test_a_replayed_kernel_has_the_correlation_of_its_launch(self):
        found, _ = self.records()
        launches = {correlation for correlation, number, _ in found["callbacks"] if number == 514}
        self.assertEqual(launches, {r["correlation"] for r in found["records"] if r["graph"] != 0})

    def test_an_early_kernel_begins_before_its_predecessor_ends(self):
        found, _ = self.records()
        first, second, third = [r for r in found["records"] if r["what"] == "kernel" and r["graph"] != 0][:3]
        self.assertGreater(second["begin"], first["end"])
        self.assertLess(third["begin"], second["end"])
        self.assertGreater(third["end"], second["end"])

    def test_branches_of_a_graph_run_side_by_side(self):
        _, log = self.records()
        first, second, third, last = bed.select(log, "kernel")[-4:]
        self.assertGreater(min(second["begin"], third["begin"]), first["end"])
        self.assertEqual(second["begin"], third["begin"])
        self.assertGreater(last["begin"], max(second["end"], third["end"]))

    def test_times_are_the_programs_own_and_events_agree_with_records(self):
        found, log = self.records()
        for record in found["records"]:
            self.assertLess(found["began"], record["begin"])
            self.assertLess(record["end"], found["ended"])
        launched = [r for r in found["records"] if r["graph"] != 0][:5]
        span = launched[-1]["end"] - launched[0]["begin"]
        self.assertGreaterEqual(found["millis"] * 1e6, span - 1)

    def test_durations_follow_from_name_and_grid(self):
        durations = collections.defaultdict(set)
        for _ in range(2):
            for line in bed.select(self.records()[1], "kernel"):
                # An early one is longer by what it began before.
                if not line["early"]:
                    durations[line["name"], line["grid"]].add(line["end"] - line["begin"])
        self.assertEqual({len(found) for found in durations.values()}, {1})

    def test_copies_and_fills_are_really_done(self):
        found, log = self.records()
        self.assertEqual(found["memory"], [7] * 64 + list(range(64, 256)))
        self.assertEqual([line["direction"] for line in bed.select(log, "copy")], ["htod"] * 3 + ["dtoh"])

    def test_the_device_is_busy_until_its_time_has_come(self):
        found, _ = self.records(**SLOW)
        self.assertTrue(found["is_busy"])

    def test_records_come_from_another_thread(self):
        self.assertTrue(self.records()[0]["is_from_another_thread"])

    def test_who_flushes_by_force_before_the_end_gets_no_times(self):
        found, log = self.records("unsynchronised", **SLOW)
        self.assertEqual(len(found["records"]), 15)
        self.assertTrue([r for r in found["records"] if r["end"] == 0])

    def test_who_switches_kinds_before_flushing_gets_wrong_times(self):
        found, log = self.records("switch")
        logged = {(line["correlation"], line.get("node")): line["begin"] for line in bed.select(log, "kernel")}
        wrong = [r for r in found["records"] if r["what"] == "kernel" and r["graph"] != 0
                 and logged[r["correlation"], r["node"] & 0xFFFFFFFF] != r["begin"]]
        self.assertEqual(len(wrong), 3)

    def test_without_a_timestamp_callback_times_are_on_another_clock(self):
        found, _ = self.records("clock")
        self.assertTrue(all(r["begin"] > found["ended"] for r in found["records"]))

    def test_waiting_for_a_captured_stream_spoils_the_capture(self):
        done, _ = self.run_program("wait")
        self.assertIn("cudaStreamEndCapture: 901", done.stderr)

    def test_asking_the_runtime_for_what_is_not_ready_leaves_an_error_to_the_program(self):
        done, _ = self.run_program("query", **SLOW)
        self.assertIn("cudaGetLastError: 600", done.stderr)

    def test_device_memory_cannot_be_read_by_the_host(self):
        done, _ = self.run_program("read")
        self.assertEqual(done.returncode, -signal.SIGSEGV)

    def test_a_record_is_dropped_and_counted_if_asked(self):
        found, log = self.records(FAKE_CUPTI_DROP=3)
        self.assertEqual((len(found["records"]), found["dropped"]), (14, 1))

    def test_a_record_has_a_wrong_name_if_asked(self):
        found, log = self.records(FAKE_CUPTI_WRONG_NAME=3)
        named = {line["name"] for line in bed.select(log, "kernel")}
        self.assertEqual(len([r for r in found["records"] if r["what"] == "kernel" and r["name"] not in named]), 1)

    def test_another_subscriber_is_there_if_asked(self):
        self.assertEqual(self.records(FAKE_CUPTI_OTHER_SUBSCRIBER=1)[0]["subscribe"], 39)

    def test_cupti_does_not_start_if_asked(self):
        self.assertEqual(self.records(FAKE_CUDA_NO_CUPTI=1)[0]["subscribe"], 15)

    def test_a_folder_without_cupti_can_be_built(self):
        folder = build_fake.build(self.folder / "fake", with_cupti=False)
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["libcublas.so.13", "libcuda.so.1", "libcudart.so.13"])


@unittest.skipUnless(bed.is_installed(), "skipped: npm's CUDA build is not installed: run `npm install` in tests/gpu")
class RealBackend(Folder):
    """On node-llama-cpp's own libggml-cuda.so."""

    def generate(self, model, layers="max", sequences=1, **variables):
        return bed.generate(FAKE, self.folder / "log", model, TOKENS, layers, sequences, **variables)

    def generate_by_c(self, model, *options):
        return bed.generate_by_c(FAKE, self.folder / "log", model, *options)

    def test_models_run_to_their_end_on_a_device_that_says_it_is_fake(self):
        for model in ("dense", "moe"):
            for layers in ("max", 3, 0):
                with self.subTest(model=model, layers=layers):
                    said, log = self.generate(model, layers)
                    self.assertEqual(said["gpu"], "cuda")
                    self.assertIn("FAKE", said["devices"][0])
                    self.assertEqual(len(said["sequences"][0]["generated"]), TOKENS)
                    self.assertEqual(bool(bed.select(log, "kernel")), layers != 0)

    def test_captured_graphs_are_replayed(self):
        for model in ("dense", "moe"):
            with self.subTest(model=model):
                _, log = self.generate(model)
                launches = bed.select(log, "launch")
                # The prompt and two tokens come before the capture.
                self.assertGreaterEqual(len(launches), TOKENS - 4)
                self.assertGreater(len(launches), len(bed.select(log, "instantiate")))
                self.assertEqual({line["result"] for line in bed.select(log, "capture")}, {0})

    def test_a_graph_launch_does_what_was_captured_node_by_node(self):
        _, log = self.generate("moe")
        executed = collections.defaultdict(list)
        for line in log:
            if line["what"] in ("kernel", "copy", "fill") and "graph" in line:
                executed[line["correlation"]].append(line["node"])
        for launch in bed.select(log, "launch"):
            self.assertEqual(executed[launch["correlation"]], list(range(launch["nodes"])))

    def test_as_many_kernels_for_each_token_with_graphs_and_without(self):
        for model in ("dense", "moe"):
            with self.subTest(model=model):
                _, log = self.generate(model)
                in_graph = collections.Counter(line["correlation"] for line in bed.select(log, "kernel") if "graph" in line)
                self.assertEqual(len(set(in_graph.values())), 1)
                _, direct = self.generate(model, GGML_CUDA_DISABLE_GRAPHS=1)
                self.assertEqual(bed.select(direct, "launch"), [])
                self.assertEqual(len(bed.select(direct, "kernel")), len(bed.select(log, "kernel")))
                self.assertEqual(names(direct), names(log))

    def test_fused_steps_are_launched_as_the_kernels_that_do_them(self):
        _, log = self.generate("moe")
        fused = names(log)
        for kernel in ("topk_moe_cuda", "moe_weighted_reduction", "rms_norm_f32ILi256ELb1E"):
            self.assertTrue(any(kernel in name for name in fused), f"no {kernel} in {sorted(fused)}")
        _, plain = self.generate("moe", GGML_CUDA_DISABLE_FUSION=1)
        self.assertFalse(any("topk_moe_cuda" in name for name in names(plain)))
        self.assertGreater(len(bed.select(plain, "kernel")), len(bed.select(log, "kernel")))

    def test_cublas_is_called_for_a_prompt(self):
        _, log = self.generate("dense")
        self.assertTrue(any(name.startswith("nvjet_") for name in names(log)))

    def test_kernels_overlap_where_the_backend_asks_for_it(self):
        _, log = self.generate("dense")
        kernels = [line for line in bed.select(log, "kernel") if "graph" in line]
        early = sum(later["begin"] < before["end"] for before, later in zip(kernels, kernels[1:], strict=False))
        self.assertGreater(early, len(kernels) // 2)

    def test_experts_are_chosen_and_differ(self):
        choices = {}
        for seed in ("0", "1"):
            _, log = self.generate("moe", FAKE_CUDA_ROUTING=seed)
            choices[seed] = [line["chosen"] for line in bed.select(log, "experts")]
            for chosen in choices[seed]:
                experts = str(chosen).split(",")
                self.assertEqual(len(experts), len(set(experts)))
        self.assertGreater(len(set(choices["0"])), 4)
        self.assertNotEqual(choices["0"], choices["1"])
        _, log = self.generate("moe", FAKE_CUDA_ROUTING="off")
        self.assertEqual(bed.select(log, "experts"), [])

    def test_one_sequence_says_the_same_each_time(self):
        said = [self.generate("moe", layers)[0]["sequences"] for layers in ("max", "max", 3)]
        self.assertEqual(said[0], said[1])
        self.assertEqual(said[0], said[2], "tokens are the fake's, wherever layers lie")
        self.assertGreater(len(set(said[0][0]["generated"])), TOKENS // 2)

    def test_sequences_are_evaluated_side_by_side(self):
        said, log = self.generate("moe", sequences=4, FAKE_CUDA_TOKEN=300)
        self.assertEqual([sequence["generated"] for sequence in said["sequences"]], [[300] * TOKENS] * 4)
        rows = collections.Counter(line["correlation"] for line in bed.select(log, "experts"))
        self.assertGreater(max(rows.values()), 1)

    def test_experts_on_the_cpu_side_split_every_layer(self):
        said, log = self.generate_by_c("moe", "-n", 8, "--cpu-moe")
        self.assertEqual(len(said[0][0]["generated"]), 8)
        # A graph for each of six layers and one for the end.
        self.assertEqual(len(bed.select(log, "instantiate")), 7)
        _, everything = self.generate_by_c("moe", "-n", 8)
        self.assertGreater(uploaded_bytes(everything), 2 * uploaded_bytes(log), "experts are most of the model, and stay")

    def test_the_same_run_copies_the_same_bytes(self):
        runs = [self.generate_by_c("moe", "-n", 8, "-s", 2, "-c", 2, *options) for options in ((), (), ("-l", 3), ("-l", 3))]
        hashes = [[line["hash"] for line in bed.select(log, "copy")] for _, log in runs]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(hashes[2], hashes[3])
        self.assertEqual(runs[0][0], runs[2][0])

    def test_a_graph_is_updated_when_the_context_grows(self):
        _, log = self.generate_by_c("dense", "-n", 300)
        self.assertEqual(len(bed.select(log, "capture")), 2)
        self.assertEqual(len(bed.select(log, "instantiate")), 1)
        self.assertEqual({line["graph"] for line in bed.select(log, "launch")}, {bed.select(log, "instantiate")[0]["graph"]})

    def test_several_devices_share_the_layers(self):
        said, log = self.generate("moe", FAKE_CUDA_DEVICES=2)
        self.assertEqual(len(said["devices"]), 2)
        self.assertEqual({line["device"] for line in bed.select(log, "kernel")}, {0, 1})

    def test_without_virtual_memory_the_pool_is_another_and_the_kernels_are_the_same(self):
        _, log = self.generate("dense")
        _, plain = self.generate("dense", FAKE_CUDA_NO_VMM=1)
        self.assertEqual(len(bed.select(plain, "kernel")), len(bed.select(log, "kernel")))
        self.assertTrue(any(line["reserved"] for line in bed.select(log, "allocate")))
        self.assertFalse(any(line["reserved"] for line in bed.select(plain, "allocate")))


def uploaded_bytes(log):
    return sum(line["bytes"] for line in bed.select(log, "copy") if line["direction"] == "htod")


def names(log):
    return {line["name"] for line in bed.select(log, "kernel")}


if __name__ == "__main__":
    unittest.main()
