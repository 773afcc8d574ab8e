"""Mutations of the weights stage, the catalog and the llama.cpp engine; see tests/mutate.py."""

CATALOG, ADAPTERS = "edge_rl/catalog.py", "edge_rl/weights/adapters.py"
EMBEDDED, LOADING = "edge_rl/weights/embedded.py", "edge_rl/weights/loading.py"
MERGING, GGUF = "edge_rl/weights/merging.py", "edge_rl/weights/gguf.py"
PARITY, ENGINE = "edge_rl/weights/parity.py", "edge_rl/rollout/engines/llama_cpp.py"
EXPORTING = "edge_rl/pipeline/exporting.py"
TEST_CATALOG, TEST_ADAPTERS = "tests/unit/test_catalog.py", "tests/unit/weights/test_adapters.py"
TEST_LOADING, TEST_MERGING = "tests/unit/weights/test_loading.py", "tests/unit/weights/test_merging.py"
TEST_GGUF, TEST_LLAMA = "tests/unit/weights/test_gguf.py", "tests/unit/weights/test_llama_cpp.py"
TEST_EXPORT = "tests/e2e/test_export.py"

MUTATIONS: list[tuple[str, str, str, str]] = [
    (CATALOG, "2 * (self.heads + self.kv_heads)", "(self.heads + 2 * self.kv_heads)", TEST_CATALOG),
    (CATALOG, "mlp = 3 * self.hidden", "mlp = 2 * self.hidden", TEST_CATALOG),
    (CATALOG, "(1 if self.tied else 2)", "1", TEST_CATALOG),
    (CATALOG, "return 2 * self.layers * self.kv_heads", "return self.layers * self.kv_heads", TEST_CATALOG),
    (CATALOG, "outputs = 2 * (self.hidden + q)", "outputs = (self.hidden + q)", TEST_CATALOG),
    (CATALOG, "parameters > MAX_PARAMETERS and", "parameters >= MAX_PARAMETERS and", TEST_CATALOG),
    (CATALOG, '(1e9 if found[2] == "b" else 1e6)', "1e6", TEST_CATALOG),
    (
        ADAPTERS,
        "up_OR.float(), down_RI.float(), alpha=scale)",
        "up_OR.float(), down_RI.float())",
        TEST_ADAPTERS,
    ),
    (
        ADAPTERS,
        "        merged[name] = weight.to(dtype or",
        "        weight = parameter.to(dtype) + (weight - parameter).to(dtype) if dtype else weight\n"
        "        merged[name] = weight.to(dtype or",
        TEST_ADAPTERS,
    ),
    (ADAPTERS, '(old / "content").is_dir() and not target.exists()', "False", TEST_ADAPTERS),
    (ADAPTERS, '(old / "content").is_dir() and not target.exists()', "(old / 'content').is_dir()", TEST_ADAPTERS),
    (ADAPTERS, "(rows * place).sum()", "rows.sum()", TEST_ADAPTERS),
    (ADAPTERS, "(torch.int16, 16)", "(torch.int16, 0)", TEST_ADAPTERS),
    (ADAPTERS, "    check_base(model, folder)\n", "", TEST_ADAPTERS),
    (ADAPTERS, "        torch.manual_seed(seed)\n", "", TEST_ADAPTERS),
    (ADAPTERS, 'requires_grad_("lora_" in name)', "requires_grad_(True)", TEST_ADAPTERS),
    (LOADING, "is_bf16_supported(including_emulation=False)", "is_bf16_supported()", TEST_LOADING),
    (LOADING, "    base.requires_grad_(False)\n", "", TEST_LOADING),
    (EMBEDDED, ".swapaxes(1, 2)", "", TEST_LOADING),
    (EMBEDDED, "    if found != SHA256:\n", "    if False:\n", TEST_LOADING),
    (EMBEDDED, "            if not target.is_dir():\n", "            if True:\n", TEST_LOADING),
    (MERGING, "    if beyond:\n", "    if False:\n", TEST_MERGING),
    (MERGING, "sorted(listed | turn_end_ids(tokenizer))", "sorted(turn_end_ids(tokenizer))", TEST_MERGING),
    (MERGING, "(merged - weight - delta)", "(merged - weight)", TEST_MERGING),
    (MERGING, "(merged != weight.to(dtype).float())", "(merged == merged)", TEST_MERGING),
    (MERGING, "if report.max_logprob_gap > limit:", "if False:", TEST_MERGING),
    (MERGING, "if report.max_delta_error > 1.0:", "if False:", TEST_MERGING),
    (MERGING, "if largest < FLOAT16_MAX / 2:", "if True:", TEST_MERGING),
    (GGUF, "split.swapaxes(1, 2)", "split", TEST_GGUF),
    (GGUF, "kinds.CONTROL if added.special", "kinds.NORMAL if added.special", TEST_GGUF),
    (GGUF, "[kinds.UNUSED] * rows", "[kinds.NORMAL] * rows", TEST_GGUF),
    (GGUF, "            if largest > FLOAT16_MAX:\n", "            if False:\n", TEST_GGUF),
    (GGUF, "if not np.isfinite(values).all():", "if False:", TEST_GGUF),
    (GGUF, "(1 - smooth) / factor + smooth", "(1 - smooth) + smooth / factor", TEST_GGUF),
    (GGUF, "(context / wavelength - low) / (high - low)", "(context / wavelength - low) / high", TEST_GGUF),
    (GGUF, 'if format == "q8_0" and odd:', "if False:", TEST_GGUF),
    (PARITY, "    if not (is_close and", "    if False and not (is_close and", TEST_LLAMA),
    (PARITY, "        if found != expected:\n            place", "        if False:\n            place", TEST_LLAMA),
    (PARITY, "[0, len(prompt) - 1 : -1]", "[0, len(prompt) :]", TEST_LLAMA),
    (ENGINE, "tokens[: place + 1]", "tokens[:place]", TEST_LLAMA),
    (ENGINE, '"samplers": ["temperature"],', "", TEST_LLAMA),
    (ENGINE, '"stop": list(stop_texts),', "", TEST_LLAMA),
    (ENGINE, "derive_seed(request.seed, len(prompt)) % 2**32", "0", TEST_LLAMA),
    (ENGINE, '        if entry["id"] != token:\n            break\n', "", TEST_LLAMA),
    (EXPORTING, "    if free < needed:\n", "    if False:\n", TEST_EXPORT),
    (EXPORTING, "    _remove_earlier(folder)\n", "", TEST_EXPORT),
]
