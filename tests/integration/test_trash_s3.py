"""Objects go into the trash and come back: of a plain bucket and of one with versions, on servers that compare etags by
themselves (SeaweedFS) and that don't (moto); and what becomes of it when the storage refuses or answers get lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from lakehouse_assets.errors import StorageRefused
from lakehouse_assets.maintenance.collect import s3_bins
from lakehouse_assets.maintenance.collect.ledger import Entry, Ledger
from lakehouse_assets.maintenance.collect.listing import storage_now
from lakehouse_assets.maintenance.collect.s3_bins import CHANGED, GONE, LOST, OTHER
from lakehouse_assets.storage.objects import raw_client
from lakehouse_assets.storage.place import place_of
from tests.support.http_server import Handler, http_server
from tests.support.proxy import Trouble, Weather, proxy
from tests.support.servers import PLAIN_BUCKET, Moto, SeaweedFS, moto
from tests.support.trash import NAMES, OWNER, Shelf

pytestmark = pytest.mark.server
VERSIONED = "versions"
ordinals = count()
FEW = ("data/keep#1.parquet", "data/n\nl", "metadata/1.json")


@pytest.fixture(scope="module")
def own_moto() -> Iterator[Moto]:
    with moto() as server:
        yield server


@pytest.fixture(params=[PLAIN_BUCKET, VERSIONED])
def shelf(request: pytest.FixtureRequest, weed: SeaweedFS) -> Shelf:
    """On SeaweedFS, in a bucket without versions and in one with."""
    return filled(weed.s3_properties(), request.param)


@pytest.fixture
def plain(weed: SeaweedFS) -> Shelf:
    return filled(weed.s3_properties(), PLAIN_BUCKET, FEW)


@pytest.fixture(params=[PLAIN_BUCKET, VERSIONED])
def careless(request: pytest.FixtureRequest, own_moto: Moto) -> Shelf:
    """On a server that copies and deletes whatever the conditions are."""
    return filled(own_moto.properties(), request.param, tuple(name for name in NAMES if "\n" not in name))


def filled(properties: dict[str, str], bucket: str, names: tuple[str, ...] = NAMES) -> Shelf:
    client = raw_client(properties)
    if bucket == VERSIONED and VERSIONED not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=VERSIONED)
        client.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
    number = next(ordinals)
    shelf = Shelf(properties, f"s3://{PLAIN_BUCKET}/staging/{number}", f"s3a://{bucket}/wh/t{number}")
    for name in names:
        write(shelf, name, name.encode())
    write(replace(shelf, root=f"{shelf.root}x"), "neighbour", b"1")
    return shelf


def write(shelf: Shelf, name: str, content: bytes) -> None:
    place = shelf.place.child(name)
    raw_client(shelf.properties).put_object(Bucket=place.bucket, Key=place.key, Body=content)


def contents(shelf: Shelf) -> dict[str, bytes]:
    client, folder = raw_client(shelf.properties), shelf.place.child("")
    return {
        found.place.key.removeprefix(folder.key): client.get_object(Bucket=folder.bucket, Key=found.place.key)[
            "Body"
        ].read()
        for found in shelf.listed()
    }


def held(shelf: Shelf) -> list[str]:
    """The keys of what the trash has copies of."""
    trash = place_of(f"{shelf.staging}/collect/{OWNER.uuid}/trash/")
    answer = raw_client(shelf.properties).list_objects_v2(Bucket=trash.bucket, Prefix=trash.key)
    return [found["Key"] for found in answer.get("Contents", ()) if "/probe-" not in found["Key"]]


def versions(shelf: Shelf) -> int:
    answer = raw_client(shelf.properties).list_object_versions(Bucket=VERSIONED, Prefix=shelf.place.child("").key)
    return len(answer.get("Versions", ()))


def test_objects_of_any_name_go_and_come_back(shelf: Shelf) -> None:
    everything = {name: name.encode() for name in NAMES}
    assert contents(shelf) == everything, "and not its neighbour's"
    report = shelf.put()
    assert (report.files, report.kept) == (len(NAMES), ())
    assert contents(shelf) == {}
    assert len(held(shelf)) == (0 if shelf.place.bucket == VERSIONED else len(NAMES)), "versions stay where they are"
    back = shelf.restore()
    assert (back.restored, back.size, back.lost) == (len(NAMES), report.size, ())
    assert contents(shelf) == everything
    assert shelf.restore().restored == 0
    assert shelf.put().files == len(NAMES)
    assert shelf.restore().restored == len(NAMES)


def test_on_a_server_that_compares_nothing_as_well(careless: Shelf) -> None:
    before = contents(careless)
    due = careless.listed()
    write(careless, "data/keep", b"DATA/KEEP")
    write(careless, "data/keep#1.parquet", b"longer than before")
    report = careless.put(due)
    assert {kept.reason for kept in report.kept} == {CHANGED}
    assert report.files == len(before) - 2
    changed = {"data/keep": b"DATA/KEEP", "data/keep#1.parquet": b"longer than before"}
    assert contents(careless) == changed
    write(careless, "data/a b", b"new")
    back = careless.restore()
    assert [(lost.place.key[-3:], lost.reason) for lost in back.lost] == [("a b", OTHER)]
    assert contents(careless) == before | changed | {"data/a b": b"new"}


def test_on_such_a_server_what_changes_after_the_copy_stays(own_moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = filled(own_moto.properties(), PLAIN_BUCKET, ("data/keep", "metadata/1.json"))
    copy = s3_bins.PlainBin._copy_away

    def late(self: s3_bins.PlainBin, entry: Entry) -> str | None:
        told = copy(self, entry)
        write(shelf, "data/keep", b"DATA/KEEP")
        return told

    monkeypatch.setattr(s3_bins.PlainBin, "_copy_away", late)
    assert [kept.reason for kept in shelf.put().kept] == [CHANGED]
    assert contents(shelf) == {"data/keep": b"DATA/KEEP"}


def test_on_such_a_server_what_changes_before_its_delete_marker_stays(
    own_moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = filled(own_moto.properties(), VERSIONED, ("data/keep", "metadata/1.json"))
    prepare = s3_bins.VersionedBin.prepare

    def late(self: s3_bins.VersionedBin, entries: list[Entry], batch: str) -> list[Entry | str]:
        told = prepare(self, entries, batch)
        write(shelf, "data/keep", b"DATA/KEEP")
        return told

    monkeypatch.setattr(s3_bins.VersionedBin, "prepare", late)
    assert [kept.reason for kept in shelf.put().kept] == [CHANGED]
    assert contents(shelf) == {"data/keep": b"DATA/KEEP"}


def test_what_changed_since_it_was_listed_stays(shelf: Shelf) -> None:
    due, client = shelf.listed(), raw_client(shelf.properties)
    write(shelf, "data/keep", b"DATA/KEEP")
    gone = shelf.place.child("metadata/1.json")
    client.delete_object(Bucket=gone.bucket, Key=gone.key)
    report = shelf.put(due)
    assert {kept.place.key[-6:]: kept.reason for kept in report.kept} == {"a/keep": CHANGED, "1.json": GONE}
    assert contents(shelf) == {"data/keep": b"DATA/KEEP"}
    assert shelf.restore().restored == len(NAMES) - 2


def test_what_changes_between_copy_and_delete_stays(plain: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    delete_same = s3_bins.PlainBin._delete_same

    def late(*arguments: Any) -> Any:
        write(plain, "metadata/1.json", b"METADATA/1.json")
        return delete_same(*arguments)

    monkeypatch.setattr(s3_bins.PlainBin, "_delete_same", late)
    assert [kept.reason for kept in plain.put().kept] == [CHANGED]
    assert contents(plain) == {"metadata/1.json": b"METADATA/1.json"}


def test_an_object_of_another_content_is_never_overwritten(shelf: Shelf) -> None:
    shelf.put()
    write(shelf, "data/keep", b"DATA/KEEP")
    write(shelf, "data/a b", b"data/a b")
    report = shelf.restore()
    assert [lost.reason for lost in report.lost] == [OTHER]
    assert report.there == 1
    assert contents(shelf) == {name: name.encode() for name in NAMES} | {"data/keep": b"DATA/KEEP"}


def test_purge_takes_what_is_past_its_time_and_nothing_else(shelf: Shelf) -> None:
    until = shelf.put().until_ms
    assert shelf.purge(until - 1).files == 0
    assert shelf.restore(places=frozenset({shelf.place.child("metadata")})).restored == 1
    purged = shelf.purge(until)
    assert (purged.files, purged.kept) == (len(NAMES) - 1, ())
    assert held(shelf) == []
    assert contents(shelf) == {"metadata/1.json": b"metadata/1.json"}
    assert shelf.restore().restored == 0
    if shelf.place.bucket == VERSIONED:
        assert versions(shelf) == 1, "the one that came back"


def test_a_version_that_somebody_made_current_again_is_not_purged(weed: SeaweedFS) -> None:
    shelf = filled(weed.s3_properties(), VERSIONED, FEW)
    until, client = shelf.put().until_ms, raw_client(shelf.properties)
    found = client.list_object_versions(Bucket=VERSIONED, Prefix=shelf.place.child("metadata/").key)
    (marker,) = found["DeleteMarkers"]
    client.delete_object(Bucket=VERSIONED, Key=marker["Key"], VersionId=marker["VersionId"])
    purged = shelf.purge(until)
    assert purged.files == len(FEW) - 1
    assert [kept.reason for kept in purged.kept] == ["its version is the current one again"]
    assert contents(shelf) == {"metadata/1.json": b"metadata/1.json"}


def test_a_version_that_somebody_removed_is_told(weed: SeaweedFS) -> None:
    shelf = filled(weed.s3_properties(), VERSIONED, FEW)
    shelf.put()
    client = raw_client(shelf.properties)
    found = client.list_object_versions(Bucket=VERSIONED, Prefix=shelf.place.child("metadata/").key)
    (version,) = found["Versions"]
    client.delete_object(Bucket=VERSIONED, Key=version["Key"], VersionId=version["VersionId"])
    report = shelf.restore()
    assert [lost.reason for lost in report.lost] == [LOST]
    assert report.restored == len(FEW) - 1


def test_an_object_in_several_parts_goes_and_comes_back(plain: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    part = 5 * 2**20  # the least that S3 takes
    place, client = plain.place.child("large"), raw_client(plain.properties)
    content = b"".join(bytes([n]) * part for n in range(3))
    upload = client.create_multipart_upload(Bucket=place.bucket, Key=place.key)["UploadId"]
    where = {"Bucket": place.bucket, "Key": place.key, "UploadId": upload}
    bodies = [content[n * part : (n + 1) * part] for n in range(3)]
    etags = [client.upload_part(**where, PartNumber=n, Body=body)["ETag"] for n, body in enumerate(bodies, 1)]
    parts = [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, 1)]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
    for largest in (2**40, part):  # in one request, and part by part
        monkeypatch.setattr(s3_bins, "LARGEST_COPY", largest)
        monkeypatch.setattr(s3_bins, "PART_BYTES", part)
        assert plain.put([found for found in plain.listed() if found.size > part]).files == 1
        assert plain.restore().restored == 1
        assert client.get_object(Bucket=place.bucket, Key=place.key)["Body"].read() == content
        plain.put([found for found in plain.listed() if found.size > part])
        write(plain, "large", b"other")
        assert [lost.reason for lost in plain.restore().lost] == [OTHER]
        client.delete_object(Bucket=place.bucket, Key=place.key)
        assert plain.restore().restored == 1


@pytest.mark.parametrize("action", ["put", "restore", "purge"])
@pytest.mark.parametrize("bucket", [PLAIN_BUCKET, VERSIONED])
@pytest.mark.parametrize(
    "every", [6, pytest.param(1, marks=pytest.mark.long("Dies at each step, in place of each sixth one."))]
)
def test_killed_at_any_step_nothing_is_lost(weed: SeaweedFS, action: str, bucket: str, every: int) -> None:
    names = ("data/keep#1.parquet", "metadata/1.json")
    for effect in range(0, 100, every):
        shelf = filled(weed.s3_properties(), bucket, names)
        due = shelf.listed()
        until = 0 if action == "put" else shelf.put().until_ms
        actions = {"put": partial(shelf.put, due), "restore": shelf.restore, "purge": partial(shelf.purge, until)}
        killed = shelf.kill(actions[action], effect)
        if action == "purge":
            assert contents(shelf) == {}
            shelf.purge(until)
            assert held(shelf) == []
            assert shelf.restore().lost == ()
        elif action == "put" and effect % 3:
            shelf.put()  # the next run: it finds the rest
            assert contents(shelf) == {}
        shelf.restore()
        expected = {} if action == "purge" else {name: name.encode() for name in names}
        assert contents(shelf) == expected, f"killed before effect {effect}"
        assert shelf.restore().lost == ()
        if not killed:
            assert effect > 5, "else nothing was tried"
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("bucket", [PLAIN_BUCKET, VERSIONED])
def test_what_a_killed_run_took_is_told_though_another_object_is_there_by_now(
    weed: SeaweedFS, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = filled(weed.s3_properties(), bucket, ("data/keep",))

    def died(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "record", died)
        shelf.put()
    write(shelf, "data/keep", b"DATA/KEEP")
    assert [lost.reason for lost in shelf.restore().lost] == [OTHER]
    assert contents(shelf) == {"data/keep": b"DATA/KEEP"}


@pytest.mark.parametrize("bucket", [PLAIN_BUCKET, VERSIONED])
def test_answers_that_get_lost_lose_no_object(weed: SeaweedFS, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore asks again, and the server refuses what it has done already."""
    shelf, send, lost = filled(weed.s3_properties(), bucket, FEW), URLLib3Session.send, set()

    def once(session: URLLib3Session, request: Any) -> Any:
        answer = send(session, request)
        call = (request.method, re.sub("probe-[0-9a-f]*", "", request.url.partition("?")[0]), answer.status_code)
        if request.method in ("PUT", "POST", "DELETE") and call not in lost and "probe" not in request.url:
            lost.add(call)
            raise ConnectionClosedError(endpoint_url=request.url)
        return answer

    monkeypatch.setattr(URLLib3Session, "send", once)
    report = shelf.put()
    assert (report.files, report.kept, len(lost) > 3) == (len(FEW), (), True)
    lost.clear()
    assert contents(shelf) == {}
    back = shelf.restore()
    assert (back.restored + back.there, back.lost) == (len(FEW), ())
    assert contents(shelf) == {name: name.encode() for name in FEW}
    until = shelf.put().until_ms
    assert shelf.purge(until).files == len(FEW)


def test_a_server_that_is_busy_for_long_is_a_clear_error(plain: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.storage.objects.S3_ATTEMPTS", 2)
    with proxy(plain.properties["s3.endpoint"]) as wire:
        behind = replace(plain, properties={**plain.properties, "s3.endpoint": wire.uri})
        trash, due = behind.trash(), behind.due()
        for begins in (put("/trash/"), posted("delete")):
            wire.trouble = Trouble(Weather.SLOW_DOWN, begins)
            with pytest.raises(StorageRefused, match=r"table demo\.numbers: .*busy or can't be reached.*the ledger"):
                trash.put(due, "run-1")
            wire.trouble = None
            assert contents(plain).keys() == set(FEW)
        report = trash.put(due, "run-2")
        assert report.files == len(FEW)
        wire.trouble = Trouble(Weather.CUT, put("/wh/"))
        with pytest.raises(StorageRefused, match="can't be restored"):
            behind.restore()
        wire.trouble = Trouble(Weather.SLOW_DOWN, posted("delete"))
        with pytest.raises(StorageRefused, match="can't be purged"):
            trash.purge(report.until_ms)
        wire.trouble = None
    plain.restore()
    assert contents(plain).keys() == set(FEW)


def put(path: str) -> Callable[[str, str], bool]:
    return lambda method, found: method == "PUT" and path in found


def posted(query: str) -> Callable[[str, str], bool]:
    return lambda method, found: method == "POST" and query in found


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.mark.parametrize(
    ("denies", "verb"),
    [
        (lambda method, path: method == "GET" and "list-type=2" in path, "be listed"),
        (lambda method, path: method == "GET" and "versioning" in path, "be collected"),
        (lambda method, path: method == "PUT" and "/trash/2" in path, "be put into the trash"),
        (lambda method, path: method == "POST" and path.startswith(f"/{PLAIN_BUCKET}?delete"), "be collected"),
    ],
)
def test_a_missing_permission_is_named(plain: Shelf, denies: Callable[[str, str], bool], verb: str) -> None:
    with denying(plain.properties["s3.endpoint"], denies) as uri:
        behind = replace(plain, properties={**plain.properties, "s3.endpoint": uri})
        with pytest.raises(StorageRefused, match=rf"{verb}: .*AccessDenied.*the collector needs s3:ListBucket"):
            behind.put()
    assert contents(plain).keys() == set(FEW)


def denying(target: str, denies: Callable[[str, str], bool]) -> Any:
    """In front of S3: refuses some requests, forever, and sends the others on."""
    import http.client
    from urllib.parse import urlsplit

    class Gate(Handler):
        def _handle(self) -> None:
            body = self.body()
            if denies(self.command, self.path):
                self.answer(403, DENIED, {"Content-Type": "application/xml"})
                return
            connection = http.client.HTTPConnection(urlsplit(target).netloc, timeout=60)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            answer, kept = response.read(), ("etag", "last-modified", "content-type")
            connection.close()
            self.answer(response.status, answer, {n: v for n, v in response.getheaders() if n.lower() in kept})

        do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    return http_server(Gate)


def lock_first(monkeypatch: pytest.MonkeyPatch, shelf: Shelf, code: str = "AccessDenied") -> None:
    """As Object Lock does: the first of several objects may not be deleted."""
    real = type(raw_client(shelf.properties)).delete_objects

    def locked(client: Any, **asked: Any) -> Any:
        first, *others = asked["Delete"]["Objects"]
        if others:
            real(client, **{**asked, "Delete": {"Objects": others, "Quiet": True}})
        return {"Errors": [{"Key": first["Key"], "Code": code, "Message": "locked"}]}

    monkeypatch.setattr(type(raw_client(shelf.properties)), "delete_objects", locked, raising=False)


def test_a_single_object_that_may_not_be_deleted_stays_and_the_others_go(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    trash, due = shelf.trash(), shelf.due()
    with monkeypatch.context() as patch:
        lock_first(patch, shelf)
        (kept,) = trash.put(due, "run-1").kept
        assert kept.reason == "the storage refused it: AccessDenied"
        assert [shelf.place.child(name) for name in contents(shelf)] == [kept.place]
        assert trash.put(shelf.due(), "run-1").kept == (kept,), "also if it is the only one"
    assert shelf.put().files == 1
    assert shelf.restore().lost == ()
    assert contents(shelf) == {name: name.encode() for name in NAMES}


def test_if_no_object_may_be_deleted_the_permissions_are_missing(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(client: Any, **asked: Any) -> Any:
        return {"Errors": [{"Key": each["Key"], "Code": "AccessDenied"} for each in asked["Delete"]["Objects"]]}

    trash, due = shelf.trash(), shelf.due()
    monkeypatch.setattr(type(raw_client(shelf.properties)), "delete_objects", denied, raising=False)
    with pytest.raises(StorageRefused, match=r"AccessDenied.*the collector needs s3:ListBucket"):
        trash.put(due, "run-1")
    assert contents(shelf) == {name: name.encode() for name in NAMES}


def test_a_single_object_that_may_not_be_copied_stays_and_the_others_go(plain: Shelf) -> None:
    with denying(plain.properties["s3.endpoint"], lambda method, path: method == "PUT" and "/00001" in path) as uri:
        report = replace(plain, properties={**plain.properties, "s3.endpoint": uri}).put()
    assert (report.files, len(report.kept), len(contents(plain))) == (len(FEW) - 1, 1, 1)


@pytest.mark.parametrize("code", ["AccessDenied", "ConditionalRequestConflict", "409"])
def test_a_version_that_can_not_go_now_is_purged_when_it_can(
    weed: SeaweedFS, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = filled(weed.s3_properties(), VERSIONED, FEW)
    trash, until = shelf.trash(), shelf.put().until_ms
    with monkeypatch.context() as patch:
        lock_first(patch, shelf, code)
        purged = trash.purge(until)
    assert [kept.reason for kept in purged.kept] == [f"the storage refused it: {code}"]
    assert versions(shelf) == 1
    purged = shelf.purge(until)
    assert (purged.files, purged.kept, versions(shelf)) == (len(FEW), (), 0)


@pytest.mark.parametrize(
    "broken",
    [
        {"IsTruncated": True},
        {"IsTruncated": False, "Name": "elsewhere"},
        {"IsTruncated": False, "Prefix": "elsewhere/"},
        {},
    ],
)
def test_an_answer_that_is_not_whole_is_no_listing(plain: Shelf, broken: dict[str, Any]) -> None:
    def answered(parsed: dict[str, Any], **_: Any) -> None:
        parsed.pop("IsTruncated")
        parsed.update(broken)

    events = raw_client(plain.properties).meta.events
    events.register("after-call.s3.ListObjectsV2", answered)
    try:
        with pytest.raises(StorageRefused, match="broke off: an answer was incomplete or of something else"):
            plain.listed()
    finally:
        events.unregister("after-call.s3.ListObjectsV2", answered)


def test_a_listing_that_is_cut_off_raises(plain: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.storage.objects.S3_ATTEMPTS", 2)
    pages = count()
    with proxy(plain.properties["s3.endpoint"]) as wire:
        wire.trouble = Trouble(Weather.CUT, lambda method, path: "list-type=2" in path and next(pages) == 1)
        behind = replace(plain, properties={**plain.properties, "s3.endpoint": wire.uri})
        monkeypatch.setattr("lakehouse_assets.maintenance.collect.listing.PAGE", 2)
        with pytest.raises(StorageRefused, match=r"s3://plain/wh/t\d+'? can't be listed"):
            behind.listed()
    assert len(plain.listed()) == len(FEW)


def test_a_table_bucket_and_a_trash_elsewhere_are_refused(weed: SeaweedFS, plain: Shelf) -> None:
    table = replace(plain, root="s3://63a8e430-6e0b-46f5--table-s3")
    with pytest.raises(StorageRefused, match="table bucket of S3 Tables, which does not allow listing"):
        table.trash()
    with pytest.raises(StorageRefused, match="LAKEHOUSE_STAGING to a prefix on the table's kind of storage"):
        replace(plain, staging="/tmp/staging").trash()


def test_a_bucket_with_versions_needs_no_trash_of_its_kind(weed: SeaweedFS, tmp_path: Any) -> None:
    shelf = replace(filled(weed.s3_properties(), VERSIONED, FEW), staging=str(tmp_path))
    report = shelf.put()
    assert report.files == len(FEW)
    assert shelf.restore().restored == len(FEW)
    assert contents(shelf) == {name: name.encode() for name in FEW}


def test_one_ledger_may_tell_of_files_of_two_storages(weed: SeaweedFS, tmp_path: Any) -> None:
    """A table on S3, whose runs' receipts are local: whatever is asked of either trash is told of both."""
    there = replace(filled(weed.s3_properties(), VERSIONED, FEW), staging=str(tmp_path / "staging"))
    here = replace(there, root=str(tmp_path / "receipts"))
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "00000.json").write_text("{}")
    here.put()
    until = there.put().until_ms
    assert there.restore(places=frozenset({here.place})).restored == 1
    assert here.restore(places=frozenset({there.place})).restored == len(FEW)
    assert here.listed()
    assert len(there.listed()) == len(FEW)
    here.put()
    there.put()
    assert here.purge(until + 60_000).files == 1 + len(FEW)
    assert not list(tmp_path.rglob("trash/*/*"))
    assert versions(there) == 0


def test_the_clock_is_the_servers(plain: Shelf) -> None:
    before = storage_now(plain.properties, plain.staging)
    write(plain, "data/later", b"1")
    (later,) = [found for found in plain.listed() if found.place.key.endswith("later")]
    assert before <= later.modified_ms <= storage_now(plain.properties, plain.staging)
