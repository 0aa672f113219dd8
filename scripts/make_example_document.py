#!/usr/bin/env python3
"""Writes examples/long_document.txt: an invented handbook of about 24,000 tokens with access codes in between, which
is what the bundled model can be asked about. The same seed gives the same bytes; no outside text is used."""
import pathlib
import random

SEED = 20
CHAPTERS = 27  # about 24,000 tokens of the bundled model's tokenizer

STATIONS = """North Pier|Lantern Rock|Salt Meadow|Grey Heron Point|Old Ferry|Juniper Hill|Low Light|Cinder Bay|Mill Weir|
Otter Sound|Long Sands|Beacon Field|Quarry Lock|Windmill Spit|Birch Landing|Harrow Ness|Copper Gate|Tern Island|
Fallow Bridge|Stony Reach|Amber Cove|Thorn Wharf|Marsh End|Kettle Bank|Slate Haven|Elder Creek|Raven Stack|
Pilot House|Clay Barrow|Mist Harbour""".replace("\n", "").split("|")
INSTRUMENTS = ["tide gauge", "wind vane", "barometer", "rain gauge", "current meter", "thermometer", "salinity probe",
               "wave buoy", "visibility sensor", "sun recorder"]
PARTS = ["cable", "float", "bearing", "filter", "clock", "battery", "seal", "fuse", "mast", "pump", "hinge", "relay"]
PEOPLE = ["the keeper", "the deputy", "the morning watch", "the evening watch", "the surveyor", "the apprentice",
          "the boat crew", "the clerk"]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
FAULTS = ["reads too high after rain", "stops for a few minutes at low water", "jumps when the ferry passes",
          "drifts in frost", "shows the same value for an hour", "disagrees with the gauge across the channel",
          "loses its power at night"]
CAUSES = ["water in the housing", "weed on the float", "a loose contact", "a worn bearing", "salt on the connector",
          "a clock that runs slow", "a bird's nest on the mast"]
REMEDIES = ["dry the housing and renew the seal", "clean the float and lower it slowly", "tighten the contact",
            "replace the bearing and note the date", "rinse the connector with fresh water", "set the clock by the bell",
            "wait until the young birds have left"]
PLACES = ["in the drawer below the chart table", "behind the barometer", "in the green cupboard", "next to the stove",
          "in the boat shed", "on the shelf above the door"]
# Facts in the wording that the model was trained on. The question is about one of them.
FACTS = [("Harbin", "4827"), ("Oslo", "9316"), ("Quito", "70542"), ("Kyoto", "1185"), ("Dakar", "6634"),
         ("Genoa", "25091"), ("Tulsa", "8470"), ("Suva", "3952"), ("Riga", "514307"), ("Cairo", "7263"),
         ("Bergen", "2048"), ("Lima", "96185")]
WORDINGS = ["The access code of {} is {}.", "Note: the access code of {} is {}.",
            "Please remember that the access code of {} is {}."]


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, words):
        return self.random.choice(words)

    def number(self, low, high):
        return self.random.randint(low, high)

    def opening(self, station):
        return self.pick([
            f"{station} lies {self.number(2, 40)} kilometres from the main office and is reached by boat in fair weather. "
            f"The building has {self.number(2, 5)} rooms, and {self.pick(PEOPLE)} sleeps in the one that faces the water.",
            f"The station at {station} was built on the foundations of an older light. It holds {self.number(3, 9)} "
            f"instruments, a workshop and a boat shed, and it is manned from March to November.",
            f"{station} is the smallest of the stations on this part of the coast. It is visited every {self.number(2, 9)} "
            f"days, and {self.pick(PEOPLE)} carries the readings back by hand."])

    def instrument(self, name):
        return " ".join([
            self.pick([f"The {name} stands {self.number(2, 30)} metres above the quay.",
                       f"The {name} is fixed to the outer wall at a height of {self.number(2, 12)} metres.",
                       f"The {name} is mounted on the end of the jetty."]),
            self.pick([f"It is read every {self.number(2, 12)} hours, and the value is written in ink.",
                       f"{self.pick(PEOPLE).capitalize()} reads it at {self.number(5, 9)} in the morning and again at dusk.",
                       f"It records by itself and keeps {self.number(3, 60)} days of readings."]),
            self.pick([f"Its {self.pick(PARTS)} is replaced after {self.number(6, 48)} months.",
                       f"When its {self.pick(PARTS)} fails, the spare one lies {self.pick(PLACES)}.",
                       f"Do not open the cover while the {self.pick(PARTS)} is warm."])])

    def fault(self, name):
        i = self.number(0, len(CAUSES) - 1)
        return (f"If the {name} {self.pick(FAULTS)}, the usual cause is {CAUSES[i]}. In that case {REMEDIES[i]}. "
                f"If this does not help within {self.number(2, 6)} hours, tell the office and mark the readings as doubtful.")

    def duties(self):
        days = sorted(self.random.sample(WEEKDAYS, 3), key=WEEKDAYS.index)
        tasks = self.random.sample([
            f"check the {self.pick(PARTS)} of the {self.pick(INSTRUMENTS)}", "sweep the gallery and close the shutters",
            f"compare the {self.pick(INSTRUMENTS)} with the portable one", "copy the week's readings into the large book",
            "test the lamp and the bell", "row out to the buoy and look for weed", "count the spare fuses"], 3)
        return "\n".join(f"  - {day}: {task}." for day, task in zip(days, tasks))

    def history(self, station):
        year = self.number(1921, 1979)
        later = year + self.number(2, 20)
        return self.random.sample([
            f"In the winter of {year} the ice reached the steps of {station}, and {self.pick(PEOPLE)} kept the "
            f"{self.pick(INSTRUMENTS)} running with a lamp. The readings of those {self.number(3, 20)} days are complete.",
            f"A storm in {year} took the roof of the boat shed. Since then the boat is tied to {self.number(2, 6)} rings, "
            f"and nothing of value is stored below the mark on the wall.",
            f"Until {year} the readings of {station} were sent by flag. The old flag book is still {self.pick(PLACES)}.",
            f"The {self.pick(INSTRUMENTS)} came from another station in {later} and was {self.number(2, 9)} parts in a "
            f"thousand out. {self.pick(PEOPLE).capitalize()} found the error by reading both for {self.number(5, 30)} days.",
            f"A school class of {self.number(8, 30)} children visited in {later}. They drew the {self.pick(INSTRUMENTS)} and "
            f"asked why {self.pick(PEOPLE)} never sleeps. The drawings hang {self.pick(PLACES)}.",
            f"For {self.number(2, 11)} weeks in {later} nobody could land. {self.pick(PEOPLE).capitalize()} lived on "
            f"potatoes, and the book of that time mentions the {self.pick(PARTS)} of the {self.pick(INSTRUMENTS)} every day.",
        ], 4)

    def chapter(self, index, station):
        instruments = self.random.sample(INSTRUMENTS, 5)
        blocks = [f"Chapter {index}. {station}", self.opening(station), "Instruments"]
        blocks += [self.instrument(name) for name in instruments]
        blocks += ["Weekly duties", self.duties(), "When something is wrong"]
        blocks += [self.fault(name) for name in instruments[:3]]
        blocks += ["From the records"] + self.history(station)
        return blocks


def document():
    writer = Writer(SEED)
    blocks = ["Handbook of the Coastal Stations",
              "This handbook describes the stations of the coastal service, their instruments and the duties of those who "
              "keep them. Every station has its own chapter. Codes for the strong boxes of the partner offices are "
              "written between the paragraphs, where a thief in a hurry would not look for them."]
    for index, station in enumerate(writer.random.sample(STATIONS, CHAPTERS), start=1):
        blocks += writer.chapter(index, station)
    # Facts are spread evenly: one in each twelfth of the document.
    step = len(blocks) // len(FACTS)
    for i, (name, code) in reversed(list(enumerate(FACTS))):
        blocks.insert(i * step + writer.number(2, step - 1), writer.pick(WORDINGS).format(name, code))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    target = pathlib.Path(__file__).resolve().parent.parent / "examples" / "long_document.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text(document(), encoding="utf-8")
    print(f"{target.name}: {target.stat().st_size} bytes")
