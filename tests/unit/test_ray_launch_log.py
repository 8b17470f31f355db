"""What Ray's launcher writes: its steps, and which command failed on which host."""

from cluster.ray import launch_log

SSH = "ssh -tt -i ~/key -o ConnectTimeout=120s root@{host} bash --login -c -i 'source ~/.bashrc; (...)'"


def logged(words: str, colour: bool = False) -> str:
    words = f"\x1b[1m{words}\x1b[22m\x1b[26m" if colour else words
    return f"2026-11-30 11:31:16,504\tINFO updater.py:277 -- {words}"


def running(host: str, command: str) -> list[str]:
    return [logged(f"Running `{command}`"), logged(f"Full command is `{SSH.format(host=host)}`")]


def done(host: str, what: str) -> str:
    return logged(f"NodeUpdater: {host}: {what}  [LogTimer=126ms]")


def test_steps_are_told_without_colours() -> None:
    assert launch_log.step(logged("[6/7] Running setup commands")) == "Running setup commands (6/7)"
    assert launch_log.step(logged("[1/7] Waiting for SSH", colour=True)) == "Waiting for SSH (1/7)"
    assert launch_log.step(logged("Success.")) is None


def test_a_failed_command_is_named_with_its_host_and_what_it_wrote() -> None:
    variables = (
        """export RAY_OVERRIDE_RESOURCES='{"CPU":8,"pd_decode":1}';export RAY_HEAD_IP=10.0.0.1; """
    )
    log = launch_log.read(
        [
            done("10.0.0.3", "Got remote shell"),
            *running("10.0.0.3", f"{variables}ray start --address=$RAY_HEAD_IP:6379"),
            "Warning: Permanently added '10.0.0.3' (ED25519) to the list of known hosts.",
            "boom\r",
            "Shared connection to 10.0.0.3 closed.",
            done("10.0.0.3", "Ray start commands failed"),
        ]
    )
    (failure,) = log.failures
    assert str(failure) == (
        "host 10.0.0.3: Ray start commands failed: ray start --address=$RAY_HEAD_IP:6379\n    boom"
    )
    assert log.reached == {"10.0.0.3"}


def test_commands_of_hosts_that_are_set_up_at_once_are_kept_apart() -> None:
    log = launch_log.read(
        [
            *running("10.0.0.2", "one"),
            *running("10.0.0.3", "other"),
            done("10.0.0.2", "Setup commands failed"),
            done("10.0.0.3", "Setup commands succeeded"),
        ]
    )
    assert [(f.host, f.command) for f in log.failures] == [("10.0.0.2", "one")]


def test_a_host_that_came_up_later_has_not_failed() -> None:
    log = launch_log.read(
        [
            *running("10.0.0.2", "one"),
            done("10.0.0.2", "Ray start commands failed"),
            *running("10.0.0.2", "one"),
            done("10.0.0.2", "Ray start commands succeeded"),
        ]
    )
    assert log.failures == ()
