def pytest_benchmark_update_machine_info(config, machine_info):
    """The saved file is committed: the host's name is nobody's business."""
    machine_info.pop("node", None)
